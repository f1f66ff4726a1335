// What every client does with a server, and how it reports it. A client hands
// in its own way of doing each step; the report is one JSON object on stdout,
// which the tests judge: nothing is judged here.

// The command line of every client program:
//   [--mode MODE] [--scenario full|cancel] (http URL | stdio COMMAND ARGS...)
export function commandLine(argv) {
  const options = { mode: '', scenario: 'full' };
  const rest = [...argv];
  while (rest.length > 0 && rest[0].startsWith('--')) {
    const name = rest.shift().slice(2);
    if (!(name in options) || rest.length === 0) throw new Error(`unknown or empty option --${name}`);
    options[name] = rest.shift();
  }
  const [transport, ...target] = rest;
  if ((transport !== 'http' && transport !== 'stdio') || target.length === 0) {
    throw new Error('usage: [--mode MODE] [--scenario full|cancel] (http URL | stdio COMMAND ARGS...)');
  }
  return { ...options, transport, target };
}

// errorOf keeps what a client library tells its user about a failure.
function errorOf(err) {
  const message = err instanceof Error ? err.message : String(err);
  return { name: err?.name, code: typeof err?.code === 'number' ? err.code : undefined, message, data: err?.data };
}

// run connects and goes through a scenario. The steps are:
//   connect(onMessage)   resolves when the handshake is done; onMessage is
//                        called with each message as it arrives from then on
//   version()            the negotiated revision
//   list(kind)           'tools', 'resources' or 'templates': all items
//   call(params, options)  options: onprogress, signal
//   read(uri), close()
export async function run(name, options, steps) {
  const report = {
    client: name, mode: options.mode, protocolVersion: '',
    tools: [], resources: [], templates: [], calls: [], read: null, errors: [],
  };
  // The order of arrival: progress notifications and answers.
  const arrived = [];
  const call = async (params, { progress = false, cancelAfter = 0 } = {}) => {
    const entry = { tool: params.name, result: null, error: null, progress: [], progressBeforeResult: true };
    report.calls.push(entry);
    const begin = arrived.length;
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
    return () => {
      // Judged at the end of the program, so that late notifications count.
      const own = arrived.slice(begin);
      entry.progressBeforeResult = own.lastIndexOf('progress') < own.indexOf('answer');
    };
  };
  try {
    await steps.connect((message) => {
      if (message.method === 'notifications/progress') arrived.push('progress');
      else if (message.method === undefined) arrived.push('answer');
    });
    report.protocolVersion = steps.version();
    if (options.scenario === 'cancel') {
      await call({ name: 'reindex', arguments: {} }, { progress: true, cancelAfter: 2 });
      await call({ name: 'get_term', arguments: { slug: 'agent-readiness' } });
    } else {
      report.tools = (await steps.list('tools')).map((t) => t.name);
      report.resources = (await steps.list('resources')).map((r) => r.uri);
      report.templates = (await steps.list('templates')).map((t) => t.uriTemplate);
      await call({ name: 'search_term', arguments: { query: 'context engineering' } });
      await call({ name: 'get_term', arguments: { slug: 'agent-readiness' } });
      await call({ name: 'get_term', arguments: {} });
      await call({ name: 'no_such_tool', arguments: {} });
      report.read = await steps.read('memo://notes/projekt');
      const judge = await call({ name: 'reindex', arguments: {} }, { progress: true });
      await call({ name: 'get_term', arguments: { slug: 'mcp' } });
      judge();
    }
    await steps.close();
  } catch (err) {
    report.errors.push(errorOf(err));
  }
  process.stdout.write(JSON.stringify(report) + '\n');
}
