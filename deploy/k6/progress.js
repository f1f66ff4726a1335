// Calls that report progress, half of them in each era, and the time to the first
// event.
//
// k6 has no reader of Server-Sent Events: a response is handed to the script when
// it has ended. What k6 knows besides is when the first byte of it came
// (timings.waiting) and how long the rest took (timings.receiving). That is the
// first event only if nothing is sent before it and nothing holds events back, so
// the script does not believe it but has the tool pause before each event:
//
// - A first byte before the first pause is over cannot be an event: the call is a
//   failure (headers went ahead, or a priming event as in 2025-11-25; the script
//   speaks 2025-06-18 for that reason).
// - A rest that takes less than half of the other pauses was kept back by
//   somebody: mcp_buffered.
//
// What is left is the first byte less the pause, mcp_first_event: the way of the
// call to the tool and of the event back, and what the timer of the tool was late.
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'progress', rate: 20, duration: '1m' });
mcp.speak('2025-06-18');
const steps = 10;
const pause = 100; // ms before each event

export const options = mcp.options(s, {
  legacy: mcp.arrivals(s, s.rate / 2, 'legacy', 1.1),
  modern: mcp.arrivals(s, s.rate / 2, 'modern', 1.1),
}, {
  mcp_failed: ['rate==0'],
  mcp_refused: ['rate==0'],
  mcp_buffered: [`rate<${s.limit('BUFFERED', 0.05)}`], // a client without processor receives late too
  'mcp_first_event{era:legacy}': ['min>0', `p(95)<${s.p95}`, `p(99)<${s.p99}`],
  'mcp_first_event{era:modern}': ['min>0', `p(95)<${s.p95}`, `p(99)<${s.p99}`],
});

export const setup = () => mcp.prepare('count');

function once(era) {
  const session = mcp.session(era);
  if (era === mcp.LEGACY && !session) {
    return;
  }
  const answer = mcp.call(era, session, 'count', { n: steps, delay_ms: pause }, { progress: true });
  let problem = mcp.wrong(answer);
  if (!problem && !answer.refused) {
    const seen = answer.notifications.filter((m) => m.method === 'notifications/progress').map((m) => m.params.progress);
    if (seen.join() !== Array.from({ length: steps }, (_, i) => i + 1).join()) {
      problem = `progress was ${seen.join()}`;
    } else if (!answer.streamed) {
      problem = 'the answer is no stream';
    } else if (answer.waited < pause) {
      problem = `the first byte came after ${answer.waited} ms, and no event is sent before ${pause} ms`;
    }
  }
  if (mcp.judge(answer, problem, { era })) {
    mcp.metrics.firstEvent.add(answer.waited - pause, { era });
    mcp.metrics.buffered.add(answer.receiving < ((steps - 1) * pause) / 2, { era });
  }
}

export const legacy = () => once(mcp.LEGACY);
export const modern = () => once(mcp.MODERN);
export const handleSummary = (data) => mcp.summary(s, data);
