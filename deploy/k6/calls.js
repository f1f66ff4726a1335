// Calls of one tool at a steady rate, half of them in each era. TOOL and ARGS
// (JSON) make it one of yours.
import * as mcp from './mcp.js';

const s = mcp.settings({ script: 'calls', rate: 100, duration: '1m' });
const tool = __ENV.TOOL || 'echo';
const args = JSON.parse(__ENV.ARGS || '{"text":"The quick brown fox jumps over the lazy dog."}');

export const options = mcp.options(s, {
  legacy: mcp.arrivals(s, s.rate / 2, 'legacy'),
  modern: mcp.arrivals(s, s.rate / 2, 'modern'),
}, { mcp_failed: ['rate==0'], mcp_refused: ['rate==0'], ...mcp.within(s) });

export const setup = () => mcp.prepare(tool);

function once(era) {
  const session = mcp.session(era);
  if (era === mcp.LEGACY && !session) {
    return; // judged already
  }
  const answer = mcp.call(era, session, tool, args);
  mcp.judge(answer, mcp.wrong(answer), { era });
}

export const legacy = () => once(mcp.LEGACY);
export const modern = () => once(mcp.MODERN);
export const handleSummary = (data) => mcp.summary(s, data);
