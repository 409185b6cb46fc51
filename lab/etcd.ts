// etcd.ts - starts temporary etcd servers for tests and benchmarks: one member or a cluster of three, on loopback
// addresses or in network namespaces.

import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setImmediate, setTimeout as delay } from 'node:timers/promises'
import { ended, execute, output } from './command.ts'
import { EVENT_MS } from './lab.ts'

/**
 * The command line of etcdctl with longer time limits. The defaults, 2 s for a connection and 5 s for a command, are
 * too short for slow machines.
 */
const ETCDCTL = [
  'env',
  'ETCDCTL_API=3',
  'etcdctl',
  '--dial-timeout',
  `${EVENT_MS}ms`,
  '--command-timeout',
  `${EVENT_MS}ms`,
]
const RETRY_MS = 100

export interface Etcd {
  readonly endpoint: string
  readonly process: ChildProcess
  /**
   * The path of a PEM file with the server's certificate. The file exists only if etcd was started with `tls`. The
   * certificate is self-signed, so clients also use it as the certificate authority.
   */
  readonly certificate: string
  /** The URL at which the other members of the cluster reach the server. */
  readonly peerUrl: string
  ctl(...args: string[]): Promise<string>
  /** Ends the server with a signal, by default SIGKILL. Keeps the server's data, so `start` continues with them. */
  kill(signal?: NodeJS.Signals): Promise<void>
  start(): Promise<void>
  /** Ends the server, replaces its data by a snapshot (made by `etcdctl snapshot save`), and starts it again. */
  restore(snapshot: string): Promise<void>
  close(): Promise<void>
}

/**
 * A loopback address that no other running test process uses, because it is computed from this process's pid (at most
 * 2^22 on Linux).
 */
const OWN_ADDRESS = `127.${64 + (process.pid >> 16)}.${(process.pid >> 8) & 255}.${process.pid & 255}`
/**
 * The first port that the search for a free port tries. FIRST_PORT is below 32768, the default start of the range from
 * which the kernel assigns ports to clients.
 */
const FIRST_PORT = 20_000
let portsGiven = 0

/**
 * Returns `ADDRESS:PORT` for a server's URL. At the time of the return no program listens on the port, and no other
 * call returns the same port.
 */
export async function ownPlace(): Promise<string> {
  for (;;) {
    const port = FIRST_PORT + portsGiven++
    const server = createServer()
    const isFree = await new Promise<boolean>((resolve, reject) => {
      // Another server of this machine may already listen on this port at the wildcard address. If so, try the next
      // port.
      server.once('error', (error: NodeJS.ErrnoException) =>
        error.code === 'EADDRINUSE' ? resolve(false) : reject(error),
      )
      server.listen(port, OWN_ADDRESS, () => server.close(() => resolve(true)))
    })
    if (isFree) return `${OWN_ADDRESS}:${port}`
  }
}

/**
 * Runs etcd until this process ends. `enter` is a command prefix that enters a network namespace. Resolves when etcd
 * serves clients.
 */
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
  readonly client: string
  readonly peer: string
  readonly enter: readonly string[]
}

async function siteOf(namespace?: string, address?: string): Promise<Site> {
  if (namespace === undefined) return { client: await ownPlace(), peer: await ownPlace(), enter: [] }
  return { client: `${address}:2379`, peer: `${address}:2380`, enter: ['ip', 'netns', 'exec', namespace] }
}

interface EtcdPlace {
  readonly namespace?: string
  readonly address?: string
  /**
   * If `tls` is set, clients must use TLS. If `tls` is `true`, etcd makes its own certificate. If `tls` is a
   * certificate, etcd uses it, and clients must present it too.
   */
  readonly tls?: boolean | Certificate
  readonly flags?: readonly string[]
  /** The etcd server whose cluster this server joins as a learner (a member that does not vote). */
  readonly learnsFrom?: Etcd
}

/** The paths of PEM files: a self-signed certificate, which servers and clients both use, and its key. */
interface Certificate {
  readonly certificate: string
  readonly key: string
}

export async function startEtcd(place: EtcdPlace = {}): Promise<Etcd> {
  const { namespace, address, tls = false, flags = [], learnsFrom } = place
  const data = mkdtempSync(join(tmpdir(), 'weft-etcd-'))
  const { client, peer, enter } = await siteOf(namespace, address)
  const endpoint = `http${tls ? 's' : ''}://${client}`
  const peerUrl = `http://${peer}`
  const shared = typeof tls === 'object' ? tls : undefined
  const name = learnsFrom ? 'learner' : 'test'
  const members = [...(learnsFrom ? [`test=${learnsFrom.peerUrl}`] : []), `${name}=${peerUrl}`].join()
  let child!: ChildProcess

  async function start(): Promise<void> {
    child = await launch(
      [
        '--name',
        name,
        '--data-dir',
        data,
        '--initial-cluster',
        members,
        '--initial-cluster-state',
        learnsFrom ? 'existing' : 'new',
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
    peerUrl,
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
      // etcd 3.6 moved the command `snapshot restore` from etcdctl to etcdutl.
      const hasUtility = (await execute(['etcd', '--version'])).stdout.includes('etcd Version: 3.6')
      await output([
        ...(hasUtility ? ['etcdutl'] : ETCDCTL),
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
  if (learnsFrom) await learnsFrom.ctl('member', 'add', name, '--learner', '--peer-urls', peerUrl)
  await start()
  return etcd
}

export interface EtcdMember {
  readonly endpoint: string
  readonly process: ChildProcess
  kill(): Promise<void>
  start(): Promise<void>
  /**
   * Stops the member's process with SIGSTOP, so that its connections stay open without answers. Resolves when the
   * process has stopped.
   */
  freeze(): Promise<void>
  thaw(): void
  /** Removes this member from the cluster and adds a new member without data at the old member's address. */
  replace(): Promise<void>
}

export interface EtcdCluster {
  readonly members: readonly EtcdMember[]
  /**
   * Runs etcdctl against the members in `through` (default: all), in the network namespace of the first of them.
   * Returns the stdout of etcdctl.
   */
  ctl(args: readonly string[], through?: readonly EtcdMember[]): Promise<string>
  /** Resolves with the first of the members `among` (default: all) that reports itself as the leader of the cluster. */
  leader(among?: readonly EtcdMember[]): Promise<EtcdMember>
  close(): Promise<void>
}

/** Calls `what` repeatedly until it succeeds. After EVENT_MS throws the error of the last call. */
async function untilDone<T>(what: () => Promise<T>): Promise<T> {
  const end = performance.now() + EVENT_MS
  for (;;) {
    try {
      return await what()
    } catch (error) {
      if (performance.now() > end) throw error
      await delay(RETRY_MS)
    }
  }
}

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
        // Turn strict-reconfig-check off, because with it etcd rejects a new member within 5 s after another member was
        // added.
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
        await becomeHealthy(others()) // the killed member may have been the leader
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
