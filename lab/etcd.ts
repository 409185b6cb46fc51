// etcd.ts - a scratch etcd for tests and benchmarks, alone or three as a cluster, on loopback or in a namespace.

import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setImmediate, setTimeout as delay } from 'node:timers/promises'
import { ended, output } from './command.ts'
import { EVENT_MS } from './lab.ts'

/** The command line of etcdctl: by itself it gives up a connection after 2 s, a command after 5 s. */
const ETCDCTL = [
  'env',
  'ETCDCTL_API=3',
  'etcdctl',
  '--dial-timeout',
  `${EVENT_MS}ms`,
  '--command-timeout',
  `${EVENT_MS}ms`,
]
/** An etcd that is not ready yet is asked again this often. */
const LOOK_MS = 100

export interface Etcd {
  readonly endpoint: string
  readonly process: ChildProcess
  /** With `tls`: the PEM file of its own certificate, which serves as the authority too. */
  readonly certificate: string
  /** Runs etcdctl against it and returns its stdout. */
  ctl(...args: string[]): Promise<string>
  /** Ends the server, by SIGKILL unless told otherwise; its data stay for `start`. */
  kill(signal?: NodeJS.Signals): Promise<void>
  /** Starts it again on the same data and ports. */
  start(): Promise<void>
  /** Ends it and starts it as it was when `etcdctl snapshot save` made this file. */
  restore(snapshot: string): Promise<void>
  /** Ends it and removes its data. */
  close(): Promise<void>
}

/** A loopback address that is this process's alone (Linux has no pid above 2^22): nobody else binds or draws a port there. */
const OWN_ADDRESS = `127.${64 + (process.pid >> 16)}.${(process.pid >> 8) & 255}.${process.pid & 255}`
/** Below what a kernel draws from for those who ask for any port, 32768 unless it is told otherwise. */
const FIRST_PORT = 20_000
let portsGiven = 0

/** A URL's host and port where nothing listens, nor will but for whoever asked; each time another. */
export async function ownPlace(): Promise<string> {
  for (;;) {
    const port = FIRST_PORT + portsGiven++
    const server = createServer()
    const isFree = await new Promise<boolean>((resolve, reject) => {
      // A server of the machine's may listen on all addresses.
      server.once('error', (error: NodeJS.ErrnoException) =>
        error.code === 'EADDRINUSE' ? resolve(false) : reject(error),
      )
      server.listen(port, OWN_ADDRESS, () => server.close(() => resolve(true)))
    })
    if (isFree) return `${OWN_ADDRESS}:${port}`
  }
}

/** Runs etcd, behind `enter`, until this process ends; resolves when it serves clients. */
async function launch(args: readonly string[], enter: readonly string[] = []): Promise<ChildProcess> {
  const common = ['--unsafe-no-fsync', '--logger', 'zap', '--log-outputs', 'stderr']
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', ...enter, 'etcd', ...common, ...args], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, ETCD_UNSUPPORTED_ARCH: process.arch },
  })
  const lines: string[] = []
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      lines.push(line)
      if (/serving (insecure )?client/.test(line)) resolve()
    })
    child.once('error', reject)
    child.once('exit', () => reject(new Error(`etcd ended:\n${lines.slice(-5).join('\n')}`)))
  })
  return child
}

interface Site {
  /** The URLs at which it serves clients, and the other members. */
  readonly client: string
  readonly peer: string
  /** The words in front of a command that run it there. */
  readonly enter: readonly string[]
}

async function siteOf(namespace?: string, address?: string): Promise<Site> {
  if (namespace === undefined) return { client: await ownPlace(), peer: await ownPlace(), enter: [] }
  return { client: `${address}:2379`, peer: `${address}:2380`, enter: ['ip', 'netns', 'exec', namespace] }
}

interface EtcdPlace {
  readonly namespace?: string
  readonly address?: string
  /** Clients must use TLS. etcd makes a certificate for itself, or has this one and asks clients for it too. */
  readonly tls?: boolean | Certificate
  /** More of etcd's flags. */
  readonly flags?: readonly string[]
}

/** PEM files of a certificate that signs itself, for servers and clients. */
interface Certificate {
  readonly certificate: string
  readonly key: string
}

/** Starts an etcd; `namespace` and `address` put it there instead of on loopback. */
export async function startEtcd({ namespace, address, tls = false, flags = [] }: EtcdPlace = {}): Promise<Etcd> {
  const data = mkdtempSync(join(tmpdir(), 'weft-etcd-'))
  const { client, peer, enter } = await siteOf(namespace, address)
  const endpoint = `http${tls ? 's' : ''}://${client}`
  const peerUrl = `http://${peer}`
  const shared = typeof tls === 'object' ? tls : undefined
  let child!: ChildProcess

  async function start(): Promise<void> {
    child = await launch(
      [
        '--name',
        'test',
        '--data-dir',
        data,
        '--initial-cluster',
        `test=${peerUrl}`,
        '--listen-client-urls',
        endpoint,
        '--advertise-client-urls',
        endpoint,
        '--listen-peer-urls',
        peerUrl,
        '--initial-advertise-peer-urls',
        peerUrl,
        ...(shared
          ? [
              '--cert-file',
              shared.certificate,
              '--key-file',
              shared.key,
              '--client-cert-auth',
              '--trusted-ca-file',
              shared.certificate,
            ]
          : []),
        ...(tls === true ? ['--auto-tls'] : []),
        ...flags,
      ],
      enter,
    )
  }
  const etcd: Etcd = {
    endpoint,
    get process() {
      return child
    },
    ctl: (...args) =>
      output([
        ...enter,
        ...ETCDCTL,
        '--endpoints',
        endpoint,
        ...(shared
          ? ['--cert', shared.certificate, '--key', shared.key, '--cacert', shared.certificate]
          : tls
            ? ['--insecure-transport=false', '--insecure-skip-tls-verify']
            : []),
        ...args,
      ]),
    certificate: shared?.certificate ?? join(data, 'fixtures', 'client', 'cert.pem'),
    async kill(signal = 'SIGKILL') {
      child.kill(signal)
      await ended(child)
    },
    start,
    async restore(snapshot) {
      await etcd.kill()
      rmSync(data, { recursive: true })
      await output([
        ...ETCDCTL,
        'snapshot',
        'restore',
        snapshot,
        '--data-dir',
        data,
        '--name',
        'test',
        '--initial-cluster',
        `test=${peerUrl}`,
        '--initial-advertise-peer-urls',
        peerUrl,
      ])
      await start()
    },
    async close() {
      await etcd.kill()
      rmSync(data, { recursive: true, force: true })
    },
  }
  await start()
  return etcd
}

/** One member of a cluster. */
export interface EtcdMember {
  readonly endpoint: string
  readonly process: ChildProcess
  /** Ends it with SIGKILL; its data stay for `start`. */
  kill(): Promise<void>
  start(): Promise<void>
  /** Stops it where it is, its connections open, and lets it go on. Resolves when the kernel has done so. */
  freeze(): Promise<void>
  thaw(): void
  /** Takes it out of the cluster for good and puts a new one with no data in its place. */
  replace(): Promise<void>
}

export interface EtcdCluster {
  readonly members: readonly EtcdMember[]
  /** Runs etcdctl against these members, or all, where the first of them is, and returns its stdout. */
  ctl(args: readonly string[], through?: readonly EtcdMember[]): Promise<string>
  /** Resolves with the member that leads, as it says itself, as soon as one of `among` does. */
  leader(among?: readonly EtcdMember[]): Promise<EtcdMember>
  close(): Promise<void>
}

/** Tries until it does not fail, for a minute. */
async function untilDone<T>(what: () => Promise<T>): Promise<T> {
  const end = performance.now() + EVENT_MS
  for (;;) {
    try {
      return await what()
    } catch (error) {
      if (performance.now() > end) throw error
      await delay(LOOK_MS)
    }
  }
}

/** Three members as one cluster: on loopback, or each in a namespace of its own. */
export async function startEtcdCluster(
  places?: readonly { readonly namespace: string; readonly address: string }[],
): Promise<EtcdCluster> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-etcd-'))
  const sites = await Promise.all(
    [0, 1, 2].map((index) => siteOf(places?.[index]?.namespace, places?.[index]?.address)),
  )
  const initial = sites.map(({ peer }, index) => `m${index}=http://${peer}`).join()
  const ctl: EtcdCluster['ctl'] = (args, through = members) =>
    output([
      ...(sites[members.findIndex((one) => one === through[0])]?.enter ?? []),
      ...ETCDCTL,
      '--endpoints',
      through.map(({ endpoint }) => endpoint).join(),
      ...args,
    ])

  /** Resolves when these agree on a leader. */
  const becomeHealthy = (through: readonly EtcdMember[]): Promise<unknown> =>
    untilDone(() => ctl(['endpoint', 'health'], through))

  function member({ client, peer, enter }: Site, index: number): EtcdMember {
    const endpoint = `http://${client}`
    const peerUrl = `http://${peer}`
    let child!: ChildProcess
    let generation = 0
    const others = (): EtcdMember[] => members.filter((_, other) => other !== index)
    const run = async (state: 'new' | 'existing'): Promise<void> => {
      const args = [
        '--name',
        `m${index}`,
        '--data-dir',
        join(folder, `m${index}-${generation}`),
        // The check would refuse a new member for the 5 s after the last one came.
        '--initial-cluster',
        initial,
        '--initial-cluster-state',
        state,
        '--strict-reconfig-check=false',
        '--listen-client-urls',
        endpoint,
        '--advertise-client-urls',
        endpoint,
        '--listen-peer-urls',
        peerUrl,
        '--initial-advertise-peer-urls',
        peerUrl,
      ]
      child = await launch(args, enter)
    }
    const self: EtcdMember = {
      endpoint,
      get process() {
        return child
      },
      async kill() {
        child.kill('SIGKILL')
        await ended(child)
      },
      start: () => run('new'),
      async freeze() {
        child.kill('SIGSTOP')
        const isStopped = (): boolean => /\) T /.test(readFileSync(`/proc/${child.pid}/stat`, 'utf8'))
        while (!isStopped()) await setImmediate()
      },
      thaw() {
        child.kill('SIGCONT')
      },
      async replace() {
        const list = await ctl(['member', 'list'], others())
        const id = new RegExp(`^([0-9a-f]+), .*, m${index}, `, 'm').exec(list)?.[1]
        if (id === undefined) throw new Error(`m${index} is not among the members:\n${list}`)
        await self.kill()
        await becomeHealthy(others()) // it may have been the leader
        await ctl(['member', 'remove', id], others())
        await ctl(['member', 'add', `m${index}`, '--peer-urls', peerUrl], others())
        generation++
        await run('existing')
        await becomeHealthy(members)
      },
    }
    return self
  }
  const members = sites.map(member)
  await Promise.all(members.map((one) => one.start()))
  return {
    members,
    ctl,
    leader: (among = members) =>
      untilDone(async () => {
        for (const one of among) {
          const text = await ctl(['endpoint', 'status', '-w', 'json'], [one])
          if (/"leader":(\d+)/.exec(text)?.[1] === /"member_id":(\d+)/.exec(text)?.[1]) return one
        }
        throw new Error('no member leads')
      }),
    async close() {
      await Promise.all(members.map((one) => one.kill()))
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
