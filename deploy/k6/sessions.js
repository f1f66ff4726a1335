// Whole sessions of the legacy era at a rate: each is opened, used for three
// calls, ended, and then must be gone.
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'sessions', rate: 20, duration: '1m' });

export const options = mcp.options(s, { sessions: mcp.arrivals(s, s.rate, 'once') }, {
  mcp_failed: ['rate==0'],
  mcp_refused: ['rate==0'],
  'mcp_duration{phase:begin}': ['min>0', `p(95)<${s.p95}`, `p(99)<${s.p99}`],
  'mcp_duration{phase:use}': ['min>0', `p(95)<${s.p95}`, `p(99)<${s.p99}`],
});

export const setup = () => mcp.prepare('echo');

export function once() {
  const era = mcp.LEGACY;
  const session = mcp.initialize({ phase: 'begin' });
  if (!session) {
    return;
  }
  for (let i = 0; i < 3; i += 1) {
    const answer = mcp.call(era, session, 'echo', { i });
    let problem = mcp.wrong(answer);
    if (!problem && !answer.refused && answer.response.result.structuredContent.i !== i) {
      problem = 'the answer is one to another call';
    }
    mcp.judge(answer, problem, { era, phase: 'use' });
  }
  const ended = mcp.end(session);
  const after = mcp.call(era, session, 'echo', {});
  let problem = '';
  if (!ended) {
    problem = 'the end of the session was refused';
  } else if (after.status !== 404) {
    problem = `a session that has ended is answered with HTTP status ${after.status}`;
  }
  mcp.judge(after, problem, { era, phase: 'end' });
}

export const handleSummary = (data) => mcp.summary(s, data);
