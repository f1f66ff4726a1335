// What every client does with a server, and how it reports it. A client hands
// in its own way of doing each step; the report is one JSON object on stdout,
// which the tests judge: nothing is judged here.

// The command line of every client program:
//   [--mode MODE] [--scenario glossary|cancel|everything|features] (http URL | sse URL | stdio COMMAND ARGS...)
export function commandLine(argv) {
  const options = { mode: '', scenario: 'glossary' };
  const rest = [...argv];
  while (rest.length > 0 && rest[0].startsWith('--')) {
    const name = rest.shift().slice(2);
    if (!(name in options) || rest.length === 0) throw new Error(`unknown or empty option --${name}`);
    options[name] = rest.shift();
  }
  const [transport, ...target] = rest;
  if (!['http', 'sse', 'stdio'].includes(transport) || target.length === 0) {
    throw new Error('usage: [--mode MODE] [--scenario glossary|cancel|everything|features] (http URL | sse URL | stdio COMMAND ARGS...)');
  }
  return { ...options, transport, target };
}

// errorOf keeps what a client library tells its user about a failure.
function errorOf(err) {
  const message = err instanceof Error ? err.message : String(err);
  return { name: err?.name, code: typeof err?.code === 'number' ? err.code : undefined, message, data: err?.data };
}

// capabilities are what every client declares.
export const capabilities = { elicitation: {}, sampling: {}, roots: {} };

// What the user of every client fills in, where a form asks for it.
const filledIn = { name: 'Ada', username: 'ada', email: 'ada@example.com', color: 'green', ok: true };

// answers are what every client answers to a server that asks, by method.
export const answers = {
  'elicitation/create': ({ params }) => ({
    action: 'accept',
    content: Object.fromEntries(Object.keys(params.requestedSchema.properties).map((key) => [key, filledIn[key]])),
  }),
  'sampling/createMessage': ({ params }) => ({
    role: 'assistant',
    model: 'none',
    stopReason: 'endTurn',
    content: { type: 'text', text: `answer to ${[params.messages[0].content].flat()[0].text}` },
  }),
  'roots/list': () => ({ roots: [{ uri: 'file:///a', name: 'a' }, { uri: 'file:///b', name: 'b' }] }),
};

// What the scenario everything calls besides count: tools that ask, the first
// three for a form, for a model and for the roots.
const asking = [
  { name: 'test_elicitation', arguments: { message: 'Who are you?' } },
  { name: 'test_sampling', arguments: { prompt: 'a question' } },
  { name: 'test_input_required_result_list_roots', arguments: {} },
  { name: 'test_input_required_result_elicitation', arguments: {} },
  { name: 'test_input_required_result_sampling', arguments: {} },
  { name: 'test_input_required_result_multi_round', arguments: {} },
  { name: 'test_input_required_result_multiple_inputs', arguments: {} },
];

// A notification that a library has handed to its user: its name without
// "notifications/", and the level of a log message or the URI of a resource.
export const notified = [];
export const told = ['message', 'resources/updated', 'tools/list_changed', 'prompts/list_changed', 'resources/list_changed'];
export function notify({ method, params }) {
  notified.push({ method: method.replace('notifications/', ''), subject: params?.level ?? params?.uri ?? '' });
}

// settle waits until the condition holds, but not for long.
async function settle(condition) {
  for (let i = 0; i < 100 && !condition(); i++) await new Promise((resolve) => setTimeout(resolve, 10));
  return condition();
}

// features goes through what a server tells or asks by itself. What a library
// refuses does not end the scenario.
async function features(name, steps, call) {
  const report = { logged: [], told: [], refused: {} };
  const attempt = async (step, doIt) => {
    try {
      return await doIt();
    } catch (err) {
      report.refused[step] = errorOf(err).message;
      return undefined;
    }
  };
  const held = `${name} ${Date.now()} ${process.pid}`;
  await call({ name: 'hold', arguments: { name: held } }, { progress: true, cancelAfter: 1 });
  await call({ name: 'held', arguments: { name: held, ms: 5000 } });
  await call({ name: 'count', arguments: { n: 20, delay_ms: 1 } }, { progress: true });
  for (const params of asking.slice(0, 3)) await call(params);
  await attempt('level', async () => {
    const meta = await steps.setLevel('warning');
    await call({ name: 'log_all', arguments: {}, ...(meta && { _meta: meta }) });
    await settle(() => notified.filter((n) => n.method === 'message').length >= 5);
    report.logged = notified.filter((n) => n.method === 'message').map((n) => n.subject);
  });
  const uri = 'test://watched-resource';
  const stop = await attempt('follow', () => steps.follow(uri));
  if (stop === undefined) return report;
  for (const [tool, method, subject] of [
    ['test_trigger_resource_update', 'resources/updated', uri],
    ['test_trigger_tool_change', 'tools/list_changed', ''],
    ['test_trigger_prompt_change', 'prompts/list_changed', ''],
    ['test_trigger_resource_change', 'resources/list_changed', ''],
  ]) {
    // Some libraries do not say when they have begun to listen.
    for (let i = 0; i < 20; i++) {
      await attempt(tool, () => steps.call({ name: tool, arguments: {} }, {}));
      if (await settle(() => notified.some((n) => n.method === method && n.subject === subject))) {
        report.told.push({ method, subject });
        break;
      }
    }
  }
  await attempt('stop', stop);
  return report;
}

// run connects and goes through a scenario. The steps are:
//   connect(onMessage)   resolves when the handshake is done; onMessage is
//                        called with each message as it arrives from then on
//   version()            the negotiated revision
//   list(kind)           'tools', 'resources' or 'templates': all items
//   call(params, options)  options: onprogress, signal
//   setLevel(level)      asks for log messages from a level on
//   follow(uri)          asks to be told of changes of the lists and of a
//                        resource; resolves to a function that ends that
//   read(uri), prompt(params), complete(params), close()
export async function run(name, options, steps) {
  const report = {
    client: name, mode: options.mode, protocolVersion: '',
    tools: [], resources: [], templates: [], calls: [], read: null,
    prompt: null, completion: null, errors: [],
  };
  // Both libraries take the id of a request as its progress token, so what
  // comes after an answer is known by the id that was answered.
  let answered; // the id of the last answer
  const allAnswered = new Set();
  const late = new Set(); // ids with progress after their answer
  const arrived = new Map(); // what was read from the server, by id
  // Messages of one read from a pipe are handed out in one turn. The libraries
  // take an answer at once and progress at the end of the turn, when nobody
  // waits for it any more: progress of the turn of its answer is dropped.
  const inTurn = new Map(); // number of progress notifications of this turn, by id
  const dropped = new Map(); // the same at the answer
  const judges = [];
  const call = async (params, { progress = false, cancelAfter = 0 } = {}) => {
    const entry = { tool: params.name, result: null, error: null, progress: [], arrived: [], dropped: 0, progressBeforeResult: true };
    report.calls.push(entry);
    const controller = new AbortController();
    const callOptions = {};
    if (progress) {
      callOptions.onprogress = (p) => {
        entry.progress.push(p);
        if (entry.progress.length === cancelAfter) controller.abort('no longer needed');
      };
    }
    if (cancelAfter > 0) callOptions.signal = controller.signal;
    try {
      entry.result = await steps.call(params, callOptions);
    } catch (err) {
      entry.error = errorOf(err);
    }
    const id = answered;
    // Judged at the end of the program, so that late notifications count.
    judges.push(() => {
      entry.progressBeforeResult = !late.has(id);
      entry.arrived = arrived.get(id) ?? [];
      entry.dropped = dropped.get(id) ?? 0;
    });
  };
  try {
    await steps.connect((message) => {
      if (message.method === 'notifications/progress') {
        const id = message.params.progressToken;
        if (allAnswered.has(id)) late.add(id);
        arrived.set(id, [...(arrived.get(id) ?? []), message.params]);
        if (inTurn.size === 0) queueMicrotask(() => inTurn.clear());
        inTurn.set(id, (inTurn.get(id) ?? 0) + 1);
      } else if (message.method === undefined) {
        answered = message.id;
        allAnswered.add(answered);
        dropped.set(answered, inTurn.get(answered) ?? 0);
      }
    });
    report.protocolVersion = steps.version();
    switch (options.scenario) {
      case 'cancel':
        await call({ name: 'reindex', arguments: {} }, { progress: true, cancelAfter: 2 });
        await call({ name: 'get_term', arguments: { slug: 'agent-readiness' } });
        break;
      case 'everything':
        report.tools = (await steps.list('tools')).map((t) => t.name);
        for (let i = 0; i < 100; i++) await call({ name: 'count', arguments: { n: 20, delay_ms: 1 } }, { progress: true });
        report.read = await steps.read('test://static-binary');
        report.prompt = await steps.prompt({ name: 'test_prompt_with_arguments', arguments: { arg1: 'one', arg2: 'two' } });
        report.completion = await steps.complete({
          ref: { type: 'ref/prompt', name: 'test_prompt_with_arguments' }, argument: { name: 'arg1', value: 'par' },
        });
        for (const params of asking) await call(params);
        break;
      case 'features':
        report.features = await features(name, steps, call);
        break;
      default:
        report.tools = (await steps.list('tools')).map((t) => t.name);
        report.resources = (await steps.list('resources')).map((r) => r.uri);
        report.templates = (await steps.list('templates')).map((t) => t.uriTemplate);
        await call({ name: 'search_term', arguments: { query: 'context engineering' } });
        await call({ name: 'get_term', arguments: { slug: 'agent-readiness' } });
        await call({ name: 'get_term', arguments: {} });
        await call({ name: 'no_such_tool', arguments: {} });
        report.read = await steps.read('memo://notes/projekt');
        await call({ name: 'reindex', arguments: {} }, { progress: true });
        await call({ name: 'get_term', arguments: { slug: 'mcp' } });
    }
    await steps.close();
    for (const judge of judges) judge();
  } catch (err) {
    report.errors.push(errorOf(err));
  }
  process.stdout.write(JSON.stringify(report) + '\n');
}
