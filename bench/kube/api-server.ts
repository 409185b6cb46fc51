// api-server.ts - runs a real kube-apiserver with etcd in the switch of a lab, for the benchmark `kube`.

import { spawn, type ChildProcess } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync, existsSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { ended } from '../../lab/command.ts'
import { startEtcd } from '../../lab/etcd.ts'
import { packageRoot, SWITCH_ADDRESS, type Lab } from '../../lab/lab.ts'
import { build, cached, goSets, NEWEST_KUBERNETES } from '../../scripts/cluster-programs.mjs'
import { FLANNEL_VERSION, MODULE } from '../../scripts/flanneld.mjs'
import type { ServerState } from './cluster-model.ts'

const URL = `https://${SWITCH_ADDRESS}:6443`
const START_MS = 120_000
const ADMIN_TOKEN = 'admin-of-the-benchmark'
const CLIENT_TOKEN = 'service-account-of-the-benchmark'

interface Programs {
  readonly kubernetes: string
  readonly apiServer: string
  readonly etcd: string
  readonly flannelClients: string
}

/**
 * Returns the paths of the programs that the benchmark needs. Programs that are not in weft's cache are built from Go
 * modules. WEFT_KUBE_APISERVER names another kube-apiserver, and WEFT_KUBERNETES another version.
 */
export async function programs(say: (line: string) => void): Promise<Programs> {
  const kubernetes = process.env['WEFT_KUBERNETES'] ?? NEWEST_KUBERNETES
  const sets = goSets(kubernetes)
  const flannel = {
    module: MODULE,
    version: FLANNEL_VERSION,
    programs: { 'flannel-clients': '.' },
    seconds: 90,
    main: readFileSync(join(packageRoot, 'bench/kube/flannel-clients.go'), 'utf8'),
  }
  const pathOf = async (name: string): Promise<string> => {
    const set = [...sets, flannel].find(({ programs: names }) => Object.hasOwn(names, name))
    if (!set) throw new Error(`no Go module has ${name}`)
    const path = cached(name, set)
    if (name === 'flannel-clients' ? !isOfSource(path, flannel.main) : !existsSync(path)) {
      say(`${name} is being built from the Go module ${set.module} ${set.version}; the first build takes minutes`)
      await build(set, [name])
      if (name === 'flannel-clients') writeFileSync(`${path}.go`, flannel.main)
    }
    return path
  }
  return {
    kubernetes: process.env['WEFT_KUBE_APISERVER'] ?? kubernetes,
    apiServer: process.env['WEFT_KUBE_APISERVER'] ?? (await pathOf('kube-apiserver')),
    etcd: await pathOf('etcd'),
    flannelClients: await pathOf('flannel-clients'),
  }
}

/** True if the program in the cache was built from this source. */
function isOfSource(path: string, source: string): boolean {
  return existsSync(path) && existsSync(`${path}.go`) && readFileSync(`${path}.go`, 'utf8') === source
}

/** A program that answers each line on its stdin with one line. */
interface Talker {
  readonly pid: number
  ask(line: string): Promise<string>
  /** Resolves with the program's next line. Rejects if the program ends. */
  next(): Promise<string>
  close(): Promise<void>
}

/** Starts a program in the network namespace of the lab's switch. */
function talk({ id }: Lab, command: readonly string[]): Talker {
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', 'ip', 'netns', 'exec', `${id}-switch`, ...command], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  child.stdin.on('error', () => {})
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const next = async (): Promise<string> => {
    const { done, value } = await lines.next()
    if (done) throw new Error(`${command.slice(0, 2).join(' ')} ended`)
    return value
  }
  return {
    pid: child.pid ?? 0,
    next,
    ask(line) {
      child.stdin.write(`${line}\n`)
      return next()
    },
    async close() {
      child.stdin.end()
      await ended(child)
    },
  }
}

/** The clients that are compared: this weft, flannel, and the weft in a second checkout. */
export type Kind = 'weft' | 'flannel' | 'old'

export interface ApiServer {
  readonly pid: number
  /** The path of a kubeconfig for daemons on hosts of the lab. */
  readonly kubeconfig: string
  fill(nodes: number): Promise<number>
  heartbeats(count: number, seconds: number): Promise<number>
  state(): Promise<ServerState>
  /** Creates clients of the API server, which are ready to start. */
  clients(kind: Kind, nodes: number, from: number, count: number): Promise<Talker>
  close(): Promise<void>
}

/**
 * Starts etcd and the API server. The flags that are not set here have their defaults. `old` is the folder of the second
 * checkout of weft.
 */
export async function startApiServer(
  lab: Lab,
  { apiServer, etcd, flannelClients }: Programs,
  old?: string,
): Promise<ApiServer> {
  const file = (name: string): string => join(lab.folder, name)
  mkdirSync(file('bin'))
  symlinkSync(etcd, file('bin/etcd'))
  process.env['PATH'] = `${file('bin')}:${process.env['PATH']}`
  const store = await startEtcd({ namespace: `${lab.id}-switch`, address: SWITCH_ADDRESS })
  const { privateKey, publicKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    privateKeyEncoding: { type: 'pkcs1', format: 'pem' },
    publicKeyEncoding: { type: 'spki', format: 'pem' },
  })
  writeFileSync(file('accounts.key'), privateKey)
  writeFileSync(file('accounts.pub'), publicKey)
  writeFileSync(file('admin-token'), ADMIN_TOKEN)
  writeFileSync(file('token'), CLIENT_TOKEN)
  const groups = '"system:serviceaccounts,system:serviceaccounts:kube-flannel"'
  writeFileSync(
    file('tokens'),
    `${ADMIN_TOKEN},admin,admin,"system:masters"\n` +
      `${CLIENT_TOKEN},system:serviceaccount:kube-flannel:flannel,flannel,${groups}\n`,
  )
  const flags = {
    'etcd-servers': store.endpoint,
    'advertise-address': SWITCH_ADDRESS,
    'secure-port': '6443',
    'cert-dir': file('certificates'),
    'service-account-issuer': 'https://kubernetes.default.svc',
    'service-account-signing-key-file': file('accounts.key'),
    'service-account-key-file': file('accounts.pub'),
    'service-cluster-ip-range': '10.96.0.0/16',
    'token-auth-file': file('tokens'),
    'authorization-mode': 'AlwaysAllow', // so that the benchmark needs no rules for its users
  }
  const words = Object.entries(flags).map(([name, value]) => `--${name}=${value}`)
  const enter = ['--pdeathsig', 'KILL', 'ip', 'netns', 'exec', `${lab.id}-switch`]
  const child = spawn('setpriv', [...enter, apiServer, ...words], { stdio: ['ignore', 'ignore', 'pipe'] })
  const said: string[] = []
  createInterface({ input: child.stderr }).on('line', (line) => {
    said.push(line)
    if (said.length > 50) said.shift()
  })
  const fail = (): never => {
    throw new Error(`${apiServer} does not start: ${said.slice(-10).join('\n')}`)
  }
  await becomeReady(lab, child, file('certificates/apiserver.crt'), fail)
  copyFileSync(file('certificates/apiserver.crt'), file('ca.crt'))
  const kubeconfig = file('kubeconfig')
  writeFileSync(
    kubeconfig,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'c',
      clusters: [{ name: 'c', cluster: { server: URL, 'certificate-authority': file('ca.crt') } }],
      users: [{ name: 'u', user: { token: CLIENT_TOKEN } }],
      contexts: [{ name: 'c', context: { cluster: 'c', user: 'u' } }],
    }),
  )
  const program = (name: string, checkout = packageRoot): string[] => [
    process.execPath,
    '--max-old-space-size=12288',
    join(checkout, `dist/bench/kube/${name}.js`),
  ]
  const admin = talk(lab, [...program('admin'), URL, lab.folder])
  return {
    pid: child.pid ?? 0,
    kubeconfig,
    fill: async (nodes) => Number(await admin.ask(`fill ${nodes}`)),
    heartbeats: async (count, seconds) => Number(await admin.ask(`heartbeats ${count} ${seconds}`)),
    state: async () => JSON.parse(await admin.ask('metrics')) as ServerState,
    async clients(kind, nodes, from, count) {
      const numbers = [nodes, from, count].map(String)
      const made = talk(
        lab,
        kind !== 'flannel'
          ? [...program('weft-clients', kind === 'old' ? old : packageRoot), URL, lab.folder, ...numbers]
          : [flannelClients, URL, file('ca.crt'), file('token'), ...numbers],
      )
      const line = await made.next()
      if (line !== 'prepared') throw new Error(`the clients of ${kind} print ${JSON.stringify(line)}`)
      return made
    },
    async close() {
      await admin.close()
      child.kill('SIGKILL')
      await ended(child)
      await store.close()
    },
  }
}

/** Waits until the API server reports that it is ready, and has its certificate. */
async function becomeReady(lab: Lab, child: ChildProcess, certificate: string, fail: () => never): Promise<void> {
  const script =
    `process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';` +
    `require('node:https').get('${URL}/readyz', { headers: { authorization: 'Bearer ${ADMIN_TOKEN}' } },` +
    `(answer) => process.exit(answer.statusCode === 200 ? 0 : 1)).on('error', () => process.exit(1))`
  const end = performance.now() + START_MS
  for (;;) {
    if (child.exitCode !== null || performance.now() > end) fail()
    const { code } = await lab.switch.run([process.execPath, '--no-warnings', '-e', script])
    if (code === 0 && existsSync(certificate)) return
    await delay(500)
  }
}
