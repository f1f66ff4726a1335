// Mixed calls for a long time, and whether anything grows: one client measures
// the same call all the time and compares the median of the last quarter with
// that of the first (mcp_drift). With ADMIN_URL, the admin listener of an edge,
// the same is done with its resident memory (mcp_memory_growth); behind a load
// balancer it is that of whoever answers, which means nothing.
import http from 'k6/http';
import exec from 'k6/execution';
import { sleep } from 'k6';
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'soak', rate: 50, duration: '30m' });
const admin = (__ENV.ADMIN_URL || '').replace(/\/+$/, '');

export const options = mcp.options(s, {
  legacy: mcp.arrivals(s, s.rate / 2, 'legacy'),
  modern: mcp.arrivals(s, s.rate / 2, 'modern'),
  probe: { executor: 'constant-vus', vus: 1, duration: s.duration, exec: 'probe' },
}, {
  mcp_failed: ['rate<0.0001'],
  mcp_refused: ['rate<0.001'],
  ...mcp.within(s),
  mcp_drift: [`value<${s.limit('DRIFT', 2)}`],
  ...(admin ? { mcp_memory_growth: [`value<${s.limit('GROWTH', 1.5)}`] } : {}),
});

export const setup = () => mcp.prepare('echo', 'count');

function once(era) {
  // One call in ten in a session of its own: those must leave nothing behind.
  const own = era === mcp.LEGACY && Math.random() < 0.1;
  const session = own ? mcp.initialize({ phase: 'begin' }) : mcp.session(era);
  if (era === mcp.LEGACY && !session) {
    return;
  }
  const answer = Math.random() < 0.1
    ? mcp.call(era, session, 'count', { n: 3, delay_ms: 10 }, { progress: true })
    : mcp.call(era, session, 'echo', { text: 'The quick brown fox jumps over the lazy dog.' });
  mcp.judge(answer, mcp.wrong(answer), { era });
  if (own) {
    mcp.end(session);
  }
}

export const legacy = () => once(mcp.LEGACY);
export const modern = () => once(mcp.MODERN);

const first = { ms: [], bytes: 0 };
const last = { ms: [], bytes: 0 };

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function resident() {
  const found = /^process_resident_memory_bytes (\S+)$/m.exec(http.get(`${admin}/metrics`).body || '');
  return found ? Number(found[1]) : 0;
}

export function probe() {
  const answer = mcp.call(mcp.MODERN, '', 'echo', {});
  const good = mcp.judge(answer, mcp.wrong(answer), { era: mcp.MODERN, kind: 'probe' });
  const at = exec.scenario.progress;
  const quarter = (at < 0.25 && first) || (at > 0.75 && last);
  if (good && quarter) {
    quarter.ms.push(answer.ms);
  }
  // What a process keeps is there after a while; before it is only warming up.
  if (admin && quarter && (at < 0.2 || last.ms.length % 20 === 1)) {
    quarter.bytes = resident() || quarter.bytes;
  }
  if (quarter === last && last.ms.length) {
    mcp.metrics.drift.add(median(last.ms) / median(first.ms));
    if (admin && first.bytes) {
      mcp.metrics.memory.add(last.bytes / first.bytes);
    }
  }
  sleep(Math.min(1, s.seconds / 200));
}

export const handleSummary = (data) => mcp.summary(s, data);
