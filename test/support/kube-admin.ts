// kube-admin.ts - changes that a test makes to a cluster as its administrator, and the keys and certificates of a test's API server.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { Agent, request } from 'node:https'
import { join } from 'node:path'
import { output } from '../../lab/command.ts'
import { EVENT_MS } from '../../lab/lab.ts'
import type { NodeObject } from '../../src/control/kube/node-lease.ts'
import type { KubeObject } from './kube-manifest.ts'

/** An API server, the small one or a real one. */
export interface KubeApi {
  /** `https://127.0.0.1:PORT`; its certificate is for the name `kubernetes` and this address. */
  readonly url: string
  /** PEM file of the authority that signed its certificate. */
  readonly caFile: string
  readonly admin: KubeAdmin
  /** Returns everything that weftd requested so far, such as `list nodes`, and whether it is allowed to. */
  asked(): readonly { readonly what: string; readonly isAllowed: boolean }[]
  /** Ends the server and its connections; its data stays. */
  kill(): Promise<void>
  start(): Promise<void>
  close(): Promise<void>
}

/** The tokens of the administrator and of weftd's service account. */
export const ADMIN_TOKEN = 'admin-of-the-test'
export const WEFT_TOKEN = 'service-account-of-weft'
export const WEFT_USER = 'system:serviceaccount:kube-flannel:flannel'

interface KubeNode extends NodeObject {
  readonly status?: { readonly conditions?: readonly Readonly<Record<string, string>>[] }
}

interface KubeAdmin {
  call(method: string, path: string, body?: unknown, contentType?: string): Promise<{ status: number; body: unknown }>
  /** Creates a node, like kubelet and the controller that assigns podCIDRs. */
  /** `podCIDR` has one pod CIDR, or two with a comma. */
  addNode(name: string, podCIDR?: string, annotations?: Readonly<Record<string, string>>): Promise<void>
  givePodCidr(name: string, podCIDR: string): Promise<void>
  node(name: string): Promise<KubeNode>
  annotate(name: string, annotations: Readonly<Record<string, string | null>>): Promise<void>
  /** Writes the condition Ready again, as a kubelet does regularly. */
  heartbeat(name: string, at?: string): Promise<void>
  removeNode(name: string): Promise<void>
  /** Creates an object, as `kubectl create` does. */
  create(object: KubeObject): Promise<{ status: number; body: unknown }>
  events(): Promise<readonly Readonly<Record<string, unknown>>[]>
}

const MERGE = 'application/merge-patch+json'
const STRATEGIC = 'application/strategic-merge-patch+json'

/** Parses an answer; an answer that is not JSON, such as that of /readyz, is returned as text. */
function read(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

export function kubeAdmin(api: () => { readonly url: string; readonly caFile: string }): KubeAdmin {
  const agent = new Agent({ keepAlive: true })
  type Answer = { readonly status: number; readonly body: unknown }
  function call(method: string, path: string, body?: unknown, contentType = 'application/json'): Promise<Answer> {
    const { url, caFile } = api()
    const text = body === undefined ? undefined : JSON.stringify(body)
    return new Promise((resolve, reject) => {
      const headers = {
        authorization: `Bearer ${ADMIN_TOKEN}`,
        ...(text === undefined ? {} : { 'content-type': contentType }),
      }
      const asked = request(`${url}${path}`, { method, ca: readFileSync(caFile), timeout: EVENT_MS, agent, headers })
      asked
        .on('response', (response) => {
          let said = ''
          response
            .setEncoding('utf8')
            .on('data', (part: string) => (said += part))
            .on('end', () => resolve({ status: response.statusCode ?? 0, body: read(said) }))
            .on('error', reject)
        })
        .on('error', (error) => {
          // The server was killed, or closed an idle connection (Node.js, request.reusedSocket).
          if (asked.reusedSocket) resolve(call(method, path, body, contentType))
          else reject(error)
        })
        .end(text)
    })
  }
  async function must(method: string, path: string, body?: unknown, contentType?: string): Promise<unknown> {
    const answer = await call(method, path, body, contentType)
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
    return answer.body
  }
  const path = (name: string): string => `/api/v1/nodes/${name}`
  const spec = (podCIDR?: string) => {
    const podCIDRs = podCIDR?.split(',')
    return podCIDRs ? { podCIDR: podCIDRs[0], podCIDRs } : {}
  }
  return {
    call,
    addNode: async (name, podCIDR, annotations = {}) =>
      void (await must('POST', '/api/v1/nodes', {
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name, annotations: { 'node.alpha.kubernetes.io/ttl': '0', ...annotations } },
        spec: spec(podCIDR),
      })),
    givePodCidr: async (name, podCIDR) => void (await must('PATCH', path(name), { spec: spec(podCIDR) }, MERGE)),
    node: async (name) => (await must('GET', path(name))) as KubeNode,
    annotate: async (name, annotations) => void (await must('PATCH', path(name), { metadata: { annotations } }, MERGE)),
    heartbeat: async (name, at = new Date().toISOString().replace(/\.\d+Z$/, 'Z')) =>
      void (await must(
        'PATCH',
        `${path(name)}/status`,
        { status: { conditions: [{ type: 'Ready', status: 'True', reason: 'KubeletReady', lastHeartbeatTime: at }] } },
        STRATEGIC,
      )),
    create: (object) => {
      const { apiVersion, kind, metadata } = object
      const group = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`
      const namespace = metadata.namespace === undefined ? '' : `/namespaces/${metadata.namespace}`
      return call('POST', `${group}${namespace}/${kind.toLowerCase()}s`, object)
    },
    removeNode: async (name) => void (await must('DELETE', path(name))),
    events: async () =>
      ((await must('GET', '/api/v1/namespaces/default/events')) as { items: readonly Record<string, unknown>[] }).items,
  }
}

/** Returns a kubeconfig with this token. */
export const kubeconfigText = (server: string, caFile: string, token: string, more = ''): string =>
  `apiVersion: v1
kind: Config
current-context: test
clusters:
- name: test
  cluster: {server: "${server}", certificate-authority: "${caFile}"${more}}
users:
- {name: test, user: {token: "${token}"}}
contexts:
- {name: test, context: {cluster: test, user: test}}
`

export interface Pki {
  readonly caFile: string
  readonly certFile: string
  readonly keyFile: string
}

/** Creates an authority in `folder`, and a certificate of it for `kubernetes` and 127.0.0.1. */
export async function makePki(folder: string): Promise<Pki> {
  mkdirSync(folder, { recursive: true })
  const file = (name: string): string => join(folder, name)
  const ec = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2']
  await output([
    'openssl',
    'req',
    '-x509',
    ...ec,
    '-subj',
    '/CN=test-ca',
    '-keyout',
    file('ca.key'),
    '-out',
    file('ca.crt'),
  ])
  writeFileSync(file('extensions'), 'subjectAltName=DNS:kubernetes,IP:127.0.0.1\n')
  await output([
    'openssl',
    'req',
    ...ec,
    '-subj',
    '/CN=kubernetes',
    '-keyout',
    file('tls.key'),
    '-out',
    file('tls.csr'),
  ])
  await output([
    'openssl',
    'x509',
    '-req',
    '-in',
    file('tls.csr'),
    '-CA',
    file('ca.crt'),
    '-CAkey',
    file('ca.key'),
    '-set_serial',
    String(Date.now()),
    '-days',
    '2',
    '-extfile',
    file('extensions'),
    '-out',
    file('tls.crt'),
  ])
  return { caFile: file('ca.crt'), certFile: file('tls.crt'), keyFile: file('tls.key') }
}
