// etcd.ts - a scratch etcd for tests and benchmarks, alone or three as a cluster, on loopback or in a namespace.

import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setImmediate } from 'node:timers/promises'
import { ended, output } from './command.ts'

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

/** Different ports that were free a moment ago. */
async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer())
  await Promise.all(servers.map((server) => new Promise<void>((go) => server.listen(0, '127.0.0.1', go))))
  const ports = servers.map((server) => (server.address() as { port: number }).port)
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))))
  return ports
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
    child.once('exit', () => reject(new Error(`etcd ended:\n${lines.slice(-5).join('\n')}`)))
  })
  return child
}

export interface EtcdPlace {
  readonly namespace?: string
  readonly address?: string
  /** Clients must use TLS. etcd makes a certificate for itself, or has this one and asks clients for it too. */
  readonly tls?: boolean | Certificate
}

/** PEM files of a certificate that signs itself, for servers and clients. */
export interface Certificate {
  readonly certificate: string
  readonly key: string
}

/** Starts an etcd; `namespace` and `address` put it there instead of on loopback. */
export async function startEtcd({ namespace, address = '127.0.0.1', tls = false }: EtcdPlace = {}): Promise<Etcd> {
  const data = mkdtempSync(join(tmpdir(), 'weft-etcd-'))
  const [client, peer] = namespace === undefined ? await freePorts(2) : [2379, 2380]
  const endpoint = `http${tls ? 's' : ''}://${address}:${client}`
  const enter = namespace === undefined ? [] : ['ip', 'netns', 'exec', namespace]
  const peerUrl = `http://${address}:${peer}`
  const shared = typeof tls === 'object' ? tls : undefined
  let child!: ChildProcess

  async function start(): Promise<void> {
    child = await launch(
      [
        ...['--name', 'test', '--data-dir', data, '--initial-cluster', `test=${peerUrl}`],
        ...['--listen-client-urls', endpoint, '--advertise-client-urls', endpoint],
        ...['--listen-peer-urls', peerUrl, '--initial-advertise-peer-urls', peerUrl],
        ...(shared
          ? [
              ...['--cert-file', shared.certificate, '--key-file', shared.key],
              ...['--client-cert-auth', '--trusted-ca-file', shared.certificate],
            ]
          : []),
        ...(tls === true ? ['--auto-tls'] : []),
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
        'env',
        'ETCDCTL_API=3',
        'etcdctl',
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
        ...['env', 'ETCDCTL_API=3', 'etcdctl', 'snapshot', 'restore', snapshot, '--data-dir', data, '--name', 'test'],
        ...['--initial-cluster', `test=${peerUrl}`, '--initial-advertise-peer-urls', peerUrl],
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
  /** The member that leads, as one of `among` tells. */
  leader(among?: readonly EtcdMember[]): Promise<EtcdMember>
  close(): Promise<void>
}

/** Three members as one cluster: on loopback, or each in a namespace of its own. */
export async function startEtcdCluster(
  places?: readonly { readonly namespace: string; readonly address: string }[],
): Promise<EtcdCluster> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-etcd-'))
  const ports = places ? [] : await freePorts(6)
  const sites = [0, 1, 2].map((index) => {
    const { namespace, address } = places?.[index] ?? { address: '127.0.0.1' }
    return {
      endpoint: `http://${address}:${ports[index] ?? 2379}`,
      peerUrl: `http://${address}:${ports[index + 3] ?? 2380}`,
      enter: namespace === undefined ? [] : ['ip', 'netns', 'exec', namespace],
    }
  })
  const initial = sites.map(({ peerUrl }, index) => `m${index}=${peerUrl}`).join()
  const ctl: EtcdCluster['ctl'] = (args, through = members) =>
    output([
      ...(sites[members.findIndex((one) => one === through[0])]?.enter ?? []),
      ...['env', 'ETCDCTL_API=3', 'etcdctl', '--dial-timeout', '2s', '--command-timeout', '2s'],
      ...['--endpoints', through.map(({ endpoint }) => endpoint).join(), ...args],
    ])

  /** Resolves when these agree on a leader; rejects when they do not within some 20 s. */
  async function becomeHealthy(through: readonly EtcdMember[]): Promise<void> {
    const giveUpAt = Date.now() + 20_000
    for (;;) {
      try {
        await ctl(['endpoint', 'health'], through)
        return
      } catch (error) {
        if (Date.now() > giveUpAt) throw error
      }
    }
  }

  function member({ endpoint, peerUrl, enter }: (typeof sites)[number], index: number): EtcdMember {
    let child!: ChildProcess
    let generation = 0
    const others = (): EtcdMember[] => members.filter((_, other) => other !== index)
    const run = async (state: 'new' | 'existing'): Promise<void> => {
      const args = [
        ...['--name', `m${index}`, '--data-dir', join(folder, `m${index}-${generation}`)],
        // The check would refuse a new member for the 5 s after the last one came.
        ...['--initial-cluster', initial, '--initial-cluster-state', state, '--strict-reconfig-check=false'],
        ...['--listen-client-urls', endpoint, '--advertise-client-urls', endpoint],
        ...['--listen-peer-urls', peerUrl, '--initial-advertise-peer-urls', peerUrl],
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
    async leader(among = members) {
      for (const one of among) {
        const text = await ctl(['endpoint', 'status', '-w', 'json'], [one])
        if (/"leader":(\d+)/.exec(text)?.[1] === /"member_id":(\d+)/.exec(text)?.[1]) return one
      }
      throw new Error('no member leads')
    },
    async close() {
      await Promise.all(members.map((one) => one.kill()))
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
