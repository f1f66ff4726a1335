// Traffic as clients make it, half of it in each era: lists, short calls, results
// of 64 KiB, calls with progress, and long calls that are cancelled.
//
// A cancellation of the legacy era is a notification, and the call must end
// without a result at once. In the modern era it is the end of the connection, of
// which a client sees nothing more. That it has reached the worker shows in the
// rest: the tool would go on for a minute and keep its slot, and soon calls would
// be refused.
import exec from 'k6/execution';
import { sleep } from 'k6';
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'mixed', rate: 50, duration: '1m' });

export const options = mcp.options(s, {
  legacy: mcp.arrivals(s, s.rate / 2, 'legacy', 0.3),
  modern: mcp.arrivals(s, s.rate / 2, 'modern', 0.3),
}, {
  mcp_failed: ['rate==0'],
  mcp_refused: ['rate==0'],
  ...Object.fromEntries(['list', 'short', 'large', 'progress'].map((kind) => [`mcp_duration{kind:${kind}}`, ['min>0', `p(95)<${s.p95 + (kind === 'progress' ? 100 : 0)}`]])),
  mcp_cancelled: ['min>0', `p(95)<${s.p95}`],
});

export const setup = () => mcp.prepare('echo', 'big', 'count', 'slow');

// Of each kind so many in twenty.
const kinds = ['list', 'list', 'list', 'cancel', 'cancel', 'large', 'large', 'progress', 'progress', 'progress'];

async function once(era) {
  const session = mcp.session(era);
  if (era === mcp.LEGACY && !session) {
    return;
  }
  // Each in its turn, so that a brief run has all of them.
  const kind = kinds[(exec.scenario.iterationInTest * 7) % 20] || 'short';
  const tags = { era, kind };
  let answer;
  let problem = '';
  switch (kind) {
    case 'list':
      answer = mcp.request(era, session, 'tools/list', {});
      problem = mcp.wrong(answer);
      if (!problem && !answer.response.result.tools.length) {
        problem = 'no tools are listed';
      }
      break;
    case 'large':
      answer = mcp.call(era, session, 'big', { bytes: 65536 });
      problem = mcp.wrong(answer);
      if (!problem && !answer.refused && answer.response.result.content[0].text.length !== 65536) {
        problem = 'the result has another length';
      }
      break;
    case 'progress':
      answer = mcp.call(era, session, 'count', { n: 5, delay_ms: 20 }, { progress: true });
      problem = mcp.wrong(answer);
      if (!problem && !answer.refused && answer.notifications.length !== 5) {
        problem = `${answer.notifications.length} notifications, want 5`;
      }
      break;
    case 'cancel':
      return cancel(era, session, tags);
    default:
      answer = mcp.call(era, session, 'echo', { text: 'The quick brown fox jumps over the lazy dog.' });
      problem = mcp.wrong(answer);
  }
  mcp.judge(answer, problem, tags);
}

async function cancel(era, session, tags) {
  const params = { name: 'slow', arguments: { ms: 60000 } };
  if (era === mcp.MODERN) {
    const answer = await mcp.cut('tools/call', params, '200ms');
    mcp.settled(answer, answer.cut || answer.refused ? '' : `a long call was not open any more: ${answer.thrown || mcp.wrong(answer)}`, tags);
    return;
  }
  const { id, answer } = mcp.begin(era, session, 'tools/call', params, {}, '30s');
  sleep(0.2);
  const sent = Date.now();
  const accepted = mcp.notify(session, 'notifications/cancelled', { requestId: id, reason: 'load test' });
  const ended = await answer;
  let problem = '';
  if (!accepted) {
    problem = 'notifications/cancelled was not accepted';
  } else if (ended.response && !ended.refused) {
    problem = 'a cancelled call was answered';
  } else if (ended.code !== 0) {
    problem = `a cancelled call ended with error ${ended.code} of k6`;
  }
  if (mcp.settled(ended, problem, tags)) {
    mcp.metrics.cancelled.add(Math.max(1, Date.now() - sent), tags); // the clock has whole milliseconds
  }
}

export const legacy = () => once(mcp.LEGACY);
export const modern = () => once(mcp.MODERN);
export const handleSummary = (data) => mcp.summary(s, data);
