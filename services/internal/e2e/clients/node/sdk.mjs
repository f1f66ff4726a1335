// @modelcontextprotocol/sdk: the clients of the revisions with a handshake.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
  PromptListChangedNotificationSchema,
  ResourceListChangedNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { answers, capabilities, commandLine, notify, run } from './scenario.mjs';

const options = commandLine(process.argv.slice(2));
const client = new Client({ name: 'e2e-sdk', version: '1.0.0' }, { capabilities });
for (const schema of [CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema]) {
  client.setRequestHandler(schema, answers[schema.shape.method.value]);
}
for (const schema of [
  LoggingMessageNotificationSchema,
  PromptListChangedNotificationSchema,
  ResourceListChangedNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
]) {
  client.setNotificationHandler(schema, notify);
}
const transport = {
  http: () => new StreamableHTTPClientTransport(new URL(options.target[0])),
  sse: () => new SSEClientTransport(new URL(options.target[0])),
  stdio: () => new StdioClientTransport({ command: options.target[0], args: options.target.slice(1), env: process.env, stderr: 'inherit' }),
}[options.transport]();
let version = '';

await run('sdk', options, {
  async connect(onMessage) {
    const inner = transport.setProtocolVersion?.bind(transport);
    transport.setProtocolVersion = (v) => {
      version = v;
      inner?.(v);
    };
    await client.connect(transport);
    const receive = transport.onmessage;
    transport.onmessage = (message, extra) => {
      onMessage(message);
      receive(message, extra);
    };
  },
  version: () => version,
  async list(kind) {
    const page = {
      tools: (p) => client.listTools(p),
      resources: (p) => client.listResources(p),
      templates: (p) => client.listResourceTemplates(p),
    }[kind];
    const items = [];
    let cursor;
    do {
      const result = await page(cursor === undefined ? {} : { cursor });
      items.push(...(result.tools ?? result.resources ?? result.resourceTemplates));
      cursor = result.nextCursor;
    } while (cursor !== undefined);
    return items;
  },
  call: (params, callOptions) => client.callTool(params, undefined, callOptions),
  read: (uri) => client.readResource({ uri }),
  prompt: (params) => client.getPrompt(params),
  complete: (params) => client.complete(params),
  setLevel: async (level) => {
    await client.setLoggingLevel(level);
    return undefined;
  },
  follow: async (uri) => {
    await client.subscribeResource({ uri });
    return () => client.unsubscribeResource({ uri });
  },
  close: () => client.close(),
});
