// What all scripts of this folder share: what they are told by the environment,
// JSON-RPC with the headers of both eras, events, measures and the summary.
import http from 'k6/http';
import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter, Gauge, Rate, Trend } from 'k6/metrics';

// --- What the environment says -----------------------------------------------

function positive(name, preset) {
  const value = Number(__ENV[name] || preset);
  if (!(value > 0)) {
    throw new Error(`${name} is ${__ENV[name]}, want a number above 0`);
  }
  return value;
}

// seconds reads a duration such as 90s, 5m or 1h30m.
export function seconds(text) {
  const parts = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$/.exec(text);
  const all = parts ? Number(parts[1] || 0) * 3600 + Number(parts[2] || 0) * 60 + Number(parts[3] || 0) : 0;
  if (!(all > 0)) {
    throw new Error(`DURATION is ${text}, want one such as 90s, 5m or 1h30m`);
  }
  return all;
}

// settings are those of one run. A script gives what it has in mind when the
// environment says nothing.
export function settings(preset) {
  const duration = __ENV.DURATION || preset.duration;
  return {
    script: preset.script,
    base: (__ENV.BASE_URL || 'http://127.0.0.1:8080').replace(/\/+$/, ''),
    rate: positive('RATE', preset.rate),
    duration,
    seconds: seconds(duration),
    streams: positive('STREAMS', preset.streams || 1),
    // Limits of durations in milliseconds: of a deployment, not of the protocol.
    p95: positive('P95', preset.p95 || 250),
    p99: positive('P99', preset.p99 || 1000),
    // Other limits, each with its preset where it is used.
    limit: positive,
  };
}

const endpoint = `${(__ENV.BASE_URL || 'http://127.0.0.1:8080').replace(/\/+$/, '')}/mcp`;

// --- What is measured --------------------------------------------------------

export const metrics = {
  // Of each call: whether its answer was missing or wrong.
  failed: new Rate('mcp_failed'),
  // Of each call: whether it was refused in order because there was no capacity.
  refused: new Rate('mcp_refused'),
  // From the request to the end of the answer.
  duration: new Trend('mcp_duration', true),
  // See progress.js for what this is and what it is not.
  firstEvent: new Trend('mcp_first_event', true),
  // Of each call with progress: whether its events came together at the end.
  buffered: new Rate('mcp_buffered'),
  // From a cancellation to the end of the call's stream.
  cancelled: new Trend('mcp_cancelled', true),
  // Streams that were ended by the server and taken up again.
  resumed: new Counter('mcp_resumed'),
  // How long idle streams were open, in seconds.
  idle: new Trend('mcp_idle_seconds'),
  // Second half of a run by its first half: durations, and resident memory.
  drift: new Gauge('mcp_drift'),
  memory: new Gauge('mcp_memory_growth'),
};

let complaints = 0;

// judge notes what has become of a call, and says whether it is good. The problem
// is what is wrong with it; empty: nothing.
export function judge(answer, problem, tags) {
  const good = settled(answer, problem, tags);
  if (good) {
    metrics.duration.add(answer.ms, tags);
  }
  return good;
}

// settled is judge for what has no duration of its own.
export function settled(answer, problem, tags) {
  const refused = Boolean(answer.refused && !problem);
  metrics.failed.add(Boolean(problem), tags);
  metrics.refused.add(refused, tags);
  // A few reasons are enough, and each VU has its own.
  if (problem && complaints < 3) {
    complaints += 1;
    console.error(`${answer.what}: ${problem}`);
  }
  return !problem && !refused;
}

// --- The protocol ------------------------------------------------------------

export const LEGACY = 'legacy';
export const MODERN = 'modern';
const revisions = { [LEGACY]: '2025-11-25', [MODERN]: '2026-07-28' };
const meta = 'io.modelcontextprotocol/';
const client = { name: 'millrace-k6', version: '1' };

// speak has a script use another revision of the legacy era.
export function speak(revision) {
  revisions[LEGACY] = revision;
}

let lastID = 0; // of this VU

// message makes the message and the headers of one request or notification.
// More are further members of params._meta.
function message(era, session, method, params, id, more) {
  const headers = {
    'Content-Type': 'application/json',
    Accept: 'application/json, text/event-stream',
  };
  if (__ENV.TOKEN) {
    headers.Authorization = `Bearer ${__ENV.TOKEN}`;
  }
  const own = { ...more };
  if (era === MODERN) {
    headers['MCP-Protocol-Version'] = revisions[era];
    headers['Mcp-Method'] = method;
    if (params.name) {
      headers['Mcp-Name'] = params.name;
    }
    own[`${meta}protocolVersion`] = revisions[era];
    own[`${meta}clientCapabilities`] = {};
    own[`${meta}clientInfo`] = client;
  } else if (session) {
    headers['MCP-Protocol-Version'] = revisions[era];
    headers['Mcp-Session-Id'] = session;
  }
  const body = { jsonrpc: '2.0', method, params: Object.keys(own).length ? { ...params, _meta: own } : params };
  if (id !== undefined) {
    body.id = id;
  }
  return { body: JSON.stringify(body), headers };
}

// events reads a text of Server-Sent Events. What has no end yet is no event.
export function events(text) {
  const found = [];
  let retry = 0;
  let id = '';
  const blocks = text.split(/\r?\n\r?\n/);
  blocks.pop();
  for (const block of blocks) {
    const data = [];
    for (const line of block.split(/\r?\n/)) {
      const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
      if (name === 'data') {
        data.push(value);
      } else if (name === 'id') {
        id = value;
      } else if (name === 'retry') {
        retry = Number(value) / 1000;
      }
    }
    const joined = data.join('\n');
    if (joined) {
      found.push(JSON.parse(joined));
    }
  }
  return { found, id, retry };
}

// read makes an answer of an HTTP response to the request with an id.
function read(what, response, id) {
  const answer = {
    what, id, ms: response.timings.duration, waited: response.timings.waiting, receiving: response.timings.receiving,
    status: response.status, code: response.error_code, header: response.headers, messages: [], lastEvent: '', retry: 0, streamed: false,
  };
  const type = response.headers['Content-Type'] || '';
  try {
    // Of a response that it gave up waiting for k6 has the body, and no headers.
    if (type.startsWith('text/event-stream') || (response.status === 0 && response.body)) {
      answer.streamed = true;
      const got = events(response.body || '');
      answer.messages = got.found;
      answer.lastEvent = got.id;
      answer.retry = got.retry;
    } else if (type.startsWith('application/json')) {
      answer.messages = [JSON.parse(response.body)];
    }
  } catch (e) {
    answer.unreadable = String(e);
  }
  find(answer);
  return answer;
}

// find finds the response among the messages.
function find(answer) {
  answer.response = answer.messages.find((m) => m.id === answer.id && m.method === undefined);
  answer.refused = Boolean(answer.response && answer.response.error && answer.response.error.data && answer.response.error.data.reason === 'overloaded');
  answer.notifications = answer.messages.filter((m) => m.method !== undefined);
}

// wrong says what is wrong with an answer that should be a result, or nothing.
export function wrong(answer) {
  if (answer.refused) {
    return '';
  }
  if (answer.unreadable) {
    return `the answer cannot be read: ${answer.unreadable}`;
  }
  if (!answer.response) {
    return `no response: HTTP status ${answer.status}, error ${answer.code} of k6`;
  }
  if (answer.response.error) {
    return JSON.stringify(answer.response.error);
  }
  if (answer.response.result.isError) {
    return `the tool failed: ${JSON.stringify(answer.response.result.content)}`;
  }
  return '';
}

function parameters(headers, what, timeout) {
  return { headers, tags: { name: what }, timeout: timeout || '60s', responseType: 'text' };
}

// request makes a request and returns its answer, which it takes up again where
// the server ends its stream before and says how: with `resume`, and only then.
export function request(era, session, method, params, more, options) {
  const { timeout, resume } = options || {};
  lastID += 1;
  const id = lastID;
  const what = params.name ? `${method} ${params.name}` : method;
  const { body, headers } = message(era, session, method, params, id, more);
  const began = Date.now();
  const answer = read(what, http.post(endpoint, body, parameters(headers, what, timeout)), id);
  if (!resume || era !== LEGACY) {
    return answer;
  }
  for (let tries = 0; tries < 50 && !answer.response && answer.lastEvent; tries += 1) {
    sleep(answer.retry || 0.2);
    const again = { ...headers, 'Last-Event-ID': answer.lastEvent };
    const rest = read(what, http.get(endpoint, parameters(again, `${what} resumed`, timeout)), id);
    metrics.resumed.add(1, { era });
    answer.messages.push(...rest.messages);
    answer.lastEvent = rest.lastEvent || answer.lastEvent;
    answer.retry = rest.retry || answer.retry;
    answer.ms = Date.now() - began;
    answer.status = rest.status;
    answer.code = rest.code;
    find(answer);
  }
  return answer;
}

// begin makes a request and returns at once its id and a promise of its answer.
export function begin(era, session, method, params, more, timeout) {
  lastID += 1;
  const id = lastID;
  const what = params.name ? `${method} ${params.name}` : method;
  const { body, headers } = message(era, session, method, params, id, more);
  return {
    id,
    answer: http.asyncRequest('POST', endpoint, body, parameters(headers, what, timeout)).then((r) => read(what, r, id)),
  };
}

// cut makes a request and closes its connection after a while, which is how the
// modern era cancels. It returns a promise of an answer that is empty then, and has
// cut set.
export function cut(method, params, after) {
  lastID += 1;
  const id = lastID;
  const what = params.name ? `${method} ${params.name}` : method;
  const { body, headers } = message(MODERN, '', method, params, id);
  // The only way for k6 to close a connection is not to wait any longer; without
  // throw it writes a warning each time.
  return http.asyncRequest('POST', endpoint, body, { ...parameters(headers, what, after), throw: true }).then(
    (r) => read(what, r, id),
    (e) => ({ what, cut: String(e).includes('request timeout'), thrown: String(e) }),
  );
}

// listen opens the stream of a session and returns a promise of what came on it.
export function listen(session, timeout) {
  const { headers } = message(LEGACY, session, '', {});
  delete headers['Content-Type'];
  headers.Accept = 'text/event-stream';
  return http.asyncRequest('GET', endpoint, null, parameters(headers, 'stream of a session', timeout)).then((r) => read('stream of a session', r));
}

// call calls a tool.
export function call(era, session, name, args, options) {
  const { progress, ...rest } = options || {};
  return request(era, session, 'tools/call', { name, arguments: args }, progress ? { progressToken: 1 } : {}, rest);
}

// notify sends a notification and says whether it was accepted.
export function notify(session, method, params) {
  const { body, headers } = message(LEGACY, session, method, params);
  return http.post(endpoint, body, parameters(headers, method)).status === 202;
}

// initialize opens a session of the legacy era and returns its id; empty when
// that fails, which is judged.
export function initialize(tags) {
  const answer = request(LEGACY, '', 'initialize', { protocolVersion: revisions[LEGACY], capabilities: {}, clientInfo: client });
  const session = answer.header['Mcp-Session-Id'] || '';
  let problem = wrong(answer);
  if (!problem && !session) {
    problem = 'no session id';
  }
  if (!problem && !notify(session, 'notifications/initialized', {})) {
    problem = 'notifications/initialized was not accepted';
  }
  return judge(answer, problem, { era: LEGACY, ...tags }) ? session : '';
}

// end ends a session and says whether it was there.
export function end(session) {
  const { headers } = message(LEGACY, session, '', {});
  delete headers['Content-Type'];
  return http.del(endpoint, null, parameters(headers, 'end of a session')).status === 204;
}

let kept = ''; // the session of this VU

// session is that of the VU in the legacy era, opened with its first call; the
// modern era has none.
export function session(era) {
  if (era === LEGACY && !kept) {
    kept = initialize({ phase: 'begin' });
  }
  return era === LEGACY ? kept : '';
}

// prepare is the setup of every script: nothing is measured of a server that is
// not there, or that has not the tools.
export function prepare(...tools) {
  const have = [];
  let cursor;
  do {
    const answer = request(MODERN, '', 'tools/list', cursor ? { cursor } : {});
    const problem = wrong(answer);
    if (problem) {
      exec.test.abort(`no use to go on: tools/list at ${endpoint}: ${problem}`);
    }
    have.push(...answer.response.result.tools.map((t) => t.name));
    cursor = answer.response.result.nextCursor;
  } while (cursor);
  const missing = tools.filter((t) => !have.includes(t));
  if (missing.length > 0) {
    exec.test.abort(`no use to go on: ${endpoint} has no tool ${missing.join(', ')}: run the pool everything there`);
  }
}

// --- Options and summary -----------------------------------------------------

// arrivals is a scenario of calls that begin at a rate, however long those before
// take: a client that waits for answers would hide that they are late. Each takes
// so many seconds when all is well.
export function arrivals(s, rate, exec, takes) {
  const busy = Math.ceil(rate * (takes || 0.2)) + 10;
  return {
    // By the minute, since half of an odd rate is not whole.
    executor: 'constant-arrival-rate', exec, rate: Math.max(1, Math.round(rate * 60)), timeUnit: '1m', duration: s.duration,
    preAllocatedVUs: 2 * busy, maxVUs: 10 * busy, gracefulStop: '30s',
  };
}

// options completes the options of a script.
export function options(s, scenarios, thresholds) {
  return {
    scenarios,
    // What k6 could not begin in time was not measured; one in a hundred may be.
    thresholds: { dropped_iterations: [`rate<${s.rate * s.limit('DROPPED', 0.01)}`], ...thresholds },
    summaryTrendStats: ['min', 'avg', 'med', 'p(95)', 'p(99)', 'max', 'count'],
    noConnectionReuse: Boolean(__ENV.NO_REUSE),
    userAgent: 'millrace-k6',
  };
}

// within are the limits of durations in both eras. Of what was never measured the
// least is 0, and all limits hold: hence min>0.
export function within(s, eras) {
  const limits = {};
  for (const era of eras || [LEGACY, MODERN]) {
    limits[`mcp_duration{era:${era}}`] = ['min>0', `p(95)<${s.p95}`, `p(99)<${s.p99}`];
  }
  return limits;
}

// stats is what a summary tells of a metric, of what it has; of a rate, passes are
// those that count.
const stats = ['count', 'rate', 'passes', 'value', 'min', 'avg', 'med', 'p(95)', 'p(99)', 'max'];

function escape(text) {
  return String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');
}

function rounded(value) {
  return Math.round(value * 1000) / 1000;
}

// summary is the handleSummary of every script: a table for people, and files
// for machines where SUMMARY is a path without its ending.
export function summary(s, data) {
  const verdicts = [];
  const measured = {};
  const names = Object.keys(data.metrics).filter((n) => n.startsWith('mcp_') || /^(dropped_iterations|iterations|http_reqs|http_req_waiting|vus_max)$/.test(n)).sort();
  for (const name of names) {
    const metric = data.metrics[name];
    measured[name] = {};
    for (const stat of stats) {
      if (metric.values[stat] !== undefined) {
        measured[name][stat] = rounded(metric.values[stat]);
      }
    }
    for (const [threshold, verdict] of Object.entries(metric.thresholds || {})) {
      verdicts.push({ metric: name, threshold, ok: verdict.ok });
    }
  }
  const passed = verdicts.length > 0 && verdicts.every((v) => v.ok);
  const took = rounded(data.state.testRunDurationMs / 1000);
  const lines = [`${s.script}: ${s.rate}/s for ${s.duration} at ${s.base}`];
  for (const name of names) {
    lines.push(`  ${name.padEnd(34)} ${Object.entries(measured[name]).map(([k, v]) => `${k}=${v}`).join(' ')}`);
  }
  for (const v of verdicts) {
    lines.push(`  ${v.ok ? 'ok  ' : 'FAIL'} ${v.metric}: ${v.threshold}`);
  }
  const out = { stdout: `${lines.join('\n')}\n${passed ? 'PASS' : 'FAIL'} after ${took} s\n` };
  if (__ENV.SUMMARY) {
    out[`${__ENV.SUMMARY}.json`] = `${JSON.stringify({
      script: s.script, base: s.base, rate: s.rate, duration: s.duration, seconds: took,
      ended: new Date().toISOString(), passed, thresholds: verdicts, metrics: measured,
    }, null, 2)}\n`;
    const cases = verdicts.map((v) => {
      const name = escape(`${v.metric}: ${v.threshold}`);
      const failure = v.ok ? '' : `\n      <failure message="${name}">${escape(JSON.stringify(measured[v.metric]))}</failure>\n    `;
      return `    <testcase classname="${s.script}" name="${name}">${failure}</testcase>`;
    });
    out[`${__ENV.SUMMARY}.xml`] = [
      '<?xml version="1.0" encoding="UTF-8"?>', '<testsuites>',
      `  <testsuite name="${s.script}" tests="${verdicts.length}" failures="${verdicts.filter((v) => !v.ok).length}" time="${took}">`,
      ...cases, '  </testsuite>', '</testsuites>', '',
    ].join('\n');
  }
  return out;
}
