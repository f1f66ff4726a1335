// A spike: RATE calls a second of 200 ms, then PEAK times as many for a while,
// then RATE again. What is too much must be refused in order (overloaded), and
// afterwards everything must be as before.
import exec from 'k6/execution';
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'spike', rate: 50, duration: '1m' });
const peak = s.limit('PEAK', 10) * s.rate;
const callTime = 200; // ms
const part = (share) => `${Math.max(1, Math.round(s.seconds * share))}s`;

export const options = mcp.options(s, {
  spike: {
    executor: 'ramping-arrival-rate', startRate: s.rate, timeUnit: '1s',
    preAllocatedVUs: Math.ceil(peak / 2), maxVUs: Math.ceil(peak * 2), gracefulStop: '30s',
    stages: [
      { target: s.rate, duration: part(0.25) },
      { target: peak, duration: part(0.05) },
      { target: peak, duration: part(0.25) },
      { target: s.rate, duration: part(0.05) },
      { target: s.rate, duration: part(0.4) },
    ],
  },
}, {
  // At the peak it may be k6 that cannot: at most one call in ten.
  dropped_iterations: [`rate<${peak * s.limit('DROPPED', 0.1)}`],
  mcp_failed: ['rate==0'],
  'mcp_refused{phase:before}': ['rate==0'],
  'mcp_refused{phase:after}': ['rate==0'],
  'mcp_refused{phase:peak}': ['rate<0.9'], // shown; how much is too much depends on the workers
  'mcp_duration{phase:before}': ['min>0', `p(95)<${callTime + s.p95}`],
  'mcp_duration{phase:after}': ['min>0', `p(95)<${callTime + s.p95}`],
  'mcp_duration{phase:peak}': ['min>0', `p(95)<${callTime + 5 * s.p99}`],
});

export const setup = () => mcp.prepare('slow');

export default function once() {
  const at = exec.scenario.progress;
  let phase = 'peak';
  if (at < 0.25) {
    phase = 'before';
  } else if (at > 0.7) { // a tenth after the peak
    phase = 'after';
  }
  const era = exec.scenario.iterationInTest % 2 ? mcp.LEGACY : mcp.MODERN;
  // Without a session, as far as the era lets: opening some thousand at once is
  // what sessions.js is for.
  const answer = mcp.call(era, '', 'slow', { ms: callTime });
  mcp.judge(answer, mcp.wrong(answer), { era, phase });
}

export const handleSummary = (data) => mcp.summary(s, data);
