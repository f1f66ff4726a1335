// A steady rate in both eras while you restart what serves it, such as with
// `kubectl rollout restart`: no call may fail, no result be lost, and no progress
// be missing or come twice. One call in five takes two seconds and reports
// progress; in the legacy era an edge that stops sends its client away, which
// comes back with Last-Event-ID.
//
// Connections are kept, as clients of a load balancer do; NO_REUSE=1 makes a new
// one for each request.
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'rolling', rate: 50, duration: '2m' });
const steps = 10;

export const options = mcp.options(s, {
  legacy: mcp.arrivals(s, s.rate / 2, 'legacy', 1),
  modern: mcp.arrivals(s, s.rate / 2, 'modern', 1),
}, {
  mcp_failed: ['rate==0'],
  mcp_refused: ['rate==0'],
  'mcp_duration{kind:short}': ['min>0', `p(95)<${s.p95}`],
  'mcp_duration{kind:long}': ['min>0'],
});

export const setup = () => mcp.prepare('echo', 'count');

function once(era) {
  const session = mcp.session(era);
  if (era === mcp.LEGACY && !session) {
    return;
  }
  if (Math.random() >= 0.2) {
    const answer = mcp.call(era, session, 'echo', { text: 'The quick brown fox jumps over the lazy dog.' }, { resume: true });
    mcp.judge(answer, mcp.wrong(answer), { era, kind: 'short' });
    return;
  }
  const answer = mcp.call(era, session, 'count', { n: steps, delay_ms: 200 }, { progress: true, resume: true });
  let problem = mcp.wrong(answer);
  const seen = answer.notifications.map((m) => m.params.progress).join();
  if (!problem && !answer.refused && seen !== Array.from({ length: steps }, (_, i) => i + 1).join()) {
    problem = `progress was ${seen}`;
  }
  mcp.judge(answer, problem, { era, kind: 'long' });
}

export const legacy = () => once(mcp.LEGACY);
export const modern = () => once(mcp.MODERN);
export const handleSummary = (data) => mcp.summary(s, data);
