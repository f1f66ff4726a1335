// STREAMS streams that only wait, half of them in each era, while a few calls a
// second go on beside them. In the middle a change of the tools is announced,
// which every stream must bring; at the end each must still be open.
//
// k6 hands over what came on a stream when that has ended. In the legacy era the
// script ends the session, and the server the stream; in the modern era k6 gives
// up waiting, about which it writes a warning for each stream.
import { sleep } from 'k6';
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'idle', rate: 10, duration: '1m', streams: 200 });
// Each VU holds several streams, as it costs k6 more than the server a stream.
const perVU = Math.min(50, Math.ceil(s.streams / 2));
const vus = Math.ceil(s.streams / 2 / perVU);

export const options = mcp.options(s, {
  sessions: { executor: 'per-vu-iterations', vus, iterations: 1, exec: 'sessions', maxDuration: `${Math.ceil(s.seconds) + 60}s` },
  listens: { executor: 'per-vu-iterations', vus, iterations: 1, exec: 'listens', maxDuration: `${Math.ceil(s.seconds) + 60}s` },
  legacy: mcp.arrivals(s, s.rate / 2, 'legacy'),
  modern: mcp.arrivals(s, s.rate / 2, 'modern'),
  change: { executor: 'per-vu-iterations', vus: 1, iterations: 1, exec: 'change', startTime: `${Math.ceil(s.seconds / 2)}s` },
}, {
  mcp_failed: ['rate==0'],
  mcp_refused: ['rate==0'],
  mcp_idle_seconds: [`min>=${s.seconds * 0.9}`], // and there was one: of nothing the least is 0
  ...mcp.within(s),
});

export const setup = () => mcp.prepare('echo', 'test_trigger_tool_change');

const CHANGED = 'notifications/tools/list_changed';

// held judges one stream that has ended after so many seconds.
function held(era, stream, open) {
  let problem = '';
  if (open < s.seconds * 0.9) {
    problem = `the stream ended after ${open} s: HTTP status ${stream.status}, error ${stream.code} of k6`;
  } else if (!stream.messages.some((m) => m.method === CHANGED)) {
    problem = `the stream brought no ${CHANGED}`;
  }
  if (mcp.settled(stream, problem, { era, kind: 'stream' })) {
    mcp.metrics.idle.add(open, { era });
  }
}

export async function sessions() {
  const streams = [];
  for (let i = 0; i < perVU; i += 1) {
    const session = mcp.initialize({ kind: 'session' });
    if (session) {
      streams.push({ session, done: mcp.listen(session, `${Math.ceil(s.seconds) + 50}s`).then((stream) => held(mcp.LEGACY, stream, stream.ms / 1000)) });
    }
  }
  // No sleep: nothing that has arrived would be looked at meanwhile.
  await new Promise((resolve) => { setTimeout(resolve, s.seconds * 1000); });
  for (const { session } of streams) {
    mcp.end(session);
  }
  await Promise.all(streams.map(({ done }) => done));
}

export async function listens() {
  const streams = [];
  for (let i = 0; i < perVU; i += 1) {
    const params = { notifications: { toolsListChanged: true } };
    const { answer } = mcp.begin(mcp.MODERN, '', 'subscriptions/listen', params, {}, `${Math.ceil(s.seconds)}s`);
    streams.push(answer.then((stream) => held(mcp.MODERN, stream, stream.code === 1050 ? s.seconds : stream.ms / 1000)));
  }
  await Promise.all(streams);
}

export function change() {
  for (let i = 0; i < 2; i += 1) { // a tool comes, and goes again
    const answer = mcp.call(mcp.MODERN, '', 'test_trigger_tool_change', {});
    mcp.judge(answer, mcp.wrong(answer), { era: mcp.MODERN, kind: 'change' });
    sleep(1);
  }
}

function once(era) {
  const session = mcp.session(era);
  if (era === mcp.LEGACY && !session) {
    return;
  }
  const answer = mcp.call(era, session, 'echo', {});
  mcp.judge(answer, mcp.wrong(answer), { era, kind: 'short' });
}

export const legacy = () => once(mcp.LEGACY);
export const modern = () => once(mcp.MODERN);
export const handleSummary = (data) => mcp.summary(s, data);
