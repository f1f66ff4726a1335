// @modelcontextprotocol/client: both eras. Its modes are "auto", "legacy" and
// "pin:REVISION".
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { answers, capabilities, commandLine, run } from './scenario.mjs';

const options = commandLine(process.argv.slice(2));
const mode = options.mode.startsWith('pin:') ? { pin: options.mode.slice(4) } : options.mode || 'auto';
const client = new Client({ name: 'e2e-client', version: '1.0.0' }, { capabilities, versionNegotiation: { mode } });
for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
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
  close: () => client.close(),
});
