// @modelcontextprotocol/client: both eras. Its modes are "auto", "legacy" and
// "pin:REVISION".
import { Client, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { answers, capabilities, commandLine, notify, run, told } from './scenario.mjs';

const options = commandLine(process.argv.slice(2));
const mode = options.mode.startsWith('pin:') ? { pin: options.mode.slice(4) } : options.mode || 'auto';
const client = new Client({ name: 'e2e-client', version: '1.0.0' }, { capabilities, versionNegotiation: { mode } });
for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
for (const method of told) client.setNotificationHandler(`notifications/${method}`, notify);
// Since this revision requests carry what was agreed on in a handshake before.
const stateless = () => client.getNegotiatedProtocolVersion() >= '2026-07-28';
const transport = options.transport === 'http'
  ? new StreamableHTTPClientTransport(new URL(options.target[0]))
  : new StdioClientTransport({ command: options.target[0], args: options.target.slice(1), env: process.env, stderr: 'inherit' });

await run('client', options, {
  async connect(onMessage) {
    await client.connect(transport);
    const receive = transport.onmessage;
    transport.onmessage = (message, extra) => {
      onMessage(message);
      receive(message, extra);
    };
  },
  version: () => client.getNegotiatedProtocolVersion(),
  // Without parameters this client reads all pages.
  list: async (kind) => ({
    tools: async () => (await client.listTools()).tools,
    resources: async () => (await client.listResources()).resources,
    templates: async () => (await client.listResourceTemplates()).resourceTemplates,
  }[kind])(),
  call: (params, callOptions) => client.callTool(params, callOptions),
  read: (uri) => client.readResource({ uri }),
  prompt: (params) => client.getPrompt(params),
  complete: (params) => client.complete(params),
  // The stateless era has a level for each request, in its metadata.
  setLevel: async (level) => {
    if (stateless()) return { [LOG_LEVEL_META_KEY]: level };
    await client.setLoggingLevel(level);
    return undefined;
  },
  follow: async (uri) => {
    if (stateless()) {
      const lists = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true };
      const subscription = await client.listen({ ...lists, resourceSubscriptions: [uri] });
      return () => subscription.close();
    }
    await client.subscribeResource({ uri });
    return () => client.unsubscribeResource({ uri });
  },
  close: () => client.close(),
});
