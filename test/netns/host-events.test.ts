// host-events.test.ts - events on the host around the daemon: an unfinished boot, a full disk, a killed child process.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import { countCalls } from '../support/calls.ts'
import { eventually } from '../support/event.ts'
import { answers } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'iptables', 'nft', 'ping')

let lab: Lab
let host: Host
let leases: string
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  host = lab.hosts[0]!
  leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
})
afterEach(() => lab.close())

const ip = (...args: string[]): Promise<string> => host.output(['ip', ...args])
const start = (
  iface: readonly string[] = ['--iface', 'eth0'],
  args: readonly string[] = [],
  env: Readonly<Record<string, string>> = {},
): Daemon => host.startDaemon({ args: ['--lease-dir', leases, ...args], iface, env })
const count = ({ lines }: Daemon, pattern: RegExp): number => lines.filter((line) => pattern.test(line)).length

describe('a daemon that starts before the boot has finished', () => {
  const WAITING = /^W.*; waiting up to 120 s for one$/

  it.each([
    [
      'no default route',
      ['route', 'del', 'default'],
      [],
      /Failed to find any valid interface to use: failed to get default interface: unable to find default route/,
      [['route', 'add', 'default', 'via', '192.168.77.254']],
    ],
    [
      'no address',
      ['address', 'flush', 'dev', 'eth0'],
      ['--iface', 'eth0'],
      /matching eth0: failed to find IPv4 address for interface eth0/,
      [['address', 'add', '192.168.77.1/24', 'dev', 'eth0']],
    ],
    [
      'the address that is asked for on none',
      ['address', 'flush', 'dev', 'eth0'],
      ['--public-ip', '192.168.77.1'],
      /error looking up interface 192\.168\.77\.1: no interface with given IP found/,
      [['address', 'add', '192.168.77.1/24', 'dev', 'eth0']],
    ],
    [
      'no such interface',
      ['link', 'set', 'eth0', 'up'],
      ['--iface-regex', '^bond[0-9]'],
      /could not match pattern \^bond\[0-9\] to any of the available network interfaces \(lo:\[\], eth0:\[192/,
      [
        ['link', 'add', 'bond7', 'type', 'bridge'],
        ['address', 'add', '192.0.2.9/24', 'dev', 'bond7'],
        ['link', 'set', 'bond7', 'up'],
      ],
    ],
    [
      'no route to the address to reach',
      ['route', 'del', 'default'],
      ['--iface-can-reach', '203.0.113.7'],
      /couldn't lookup route to 203\.0\.113\.7: network is unreachable/,
      [['route', 'add', 'default', 'via', '192.168.77.254']],
    ],
  ])(
    'logs the reason once if there is %s, and continues when that changes',
    async (_title, spoil, iface, why, repair) => {
      await ip(...spoil)
      const daemon = start(iface)
      await daemon.line(WAITING)
      await daemon.line(why)
      // Changes that do not help cause checks but no log line.
      for (const state of ['down', 'up', 'down']) await ip('link', 'set', 'lo', state)
      const lines = daemon.lines.length
      for (const args of repair) await ip(...args)
      await daemon.line(/flannel is ready/)
      expect(count(daemon, WAITING)).toBe(1)
      expect(count(daemon, why)).toBeLessThanOrEqual(2) // in the line itself and as the reason of the wait
      expect(daemon.lines.slice(lines).filter((line) => /^[WE]/.test(line))).toEqual([])
      expect(await daemon.stop()).toBe(0)
    },
  )

  it('ends with 0 on SIGTERM if nothing appears', async () => {
    const daemon = start(['--iface', 'eth7'])
    await daemon.line(WAITING)
    expect(await daemon.stop()).toBe(0)
  })
})

describe('--ip-blackhole-route', () => {
  it('drops packets to unused addresses but not to containers, is repaired, and follows the subnet', async () => {
    // A route of an earlier run for a subnet below SubnetMin, which no node draws.
    await ip('route', 'add', 'blackhole', '10.5.0.0/24', 'metric', '4294967295')
    const args = ['--ip-blackhole-route', '--iptables-resync', '1']
    const daemon = start(undefined, args)
    await daemon.line(/flannel is ready/)
    const subnet = (host.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace('.1/', '.0/')
    const blackholes = async (): Promise<string[]> =>
      (await ip('route', 'show', 'type', 'blackhole')).split('\n').flatMap((line) => line.trim() || [])
    const ours = `blackhole ${subnet} metric 4294967295`
    expect(await blackholes()).toEqual([ours])
    const nobody = subnet.replace('.0/24', '.99')
    expect((await host.run(['ip', 'route', 'get', nobody])).code).not.toBe(0)

    const pod = await host.startPod() // this creates the bridge and its route
    await answers(host.namespace, pod.address, 1)

    await ip('route', 'del', 'blackhole', subnet, 'metric', '4294967295')
    await daemon.line(/^W.*Repaired: the blackhole route of .* was gone/)
    expect(await blackholes()).toEqual([ours])
    expect(await daemon.stop()).toBe(0)
    expect(await blackholes()).toEqual([ours]) // flanneld leaves it too
  })
})

/** The families of networks with IPv6. */
const BOTH: Family[][] = [['ipv4', 'ipv6'], ['ipv6']]

describe('the reports of the kernel', () => {
  const children = ({ process: { pid } }: Daemon): string =>
    readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()

  it('need no child process, and neither ip nor setpriv', async () => {
    const bin = join(lab.folder, 'bin')
    mkdirSync(bin)
    const daemon = host.startDaemon({
      args: ['--lease-dir', leases, '--iptables-forward-rules=false'],
      before: [(await host.output(['sh', '-c', 'command -v env'])).trim(), `PATH=${bin}`],
    })
    await daemon.line(/flannel is ready/)
    await ip('route', 'del', '10.5.0.0/16')
    await daemon.line(/Repaired: the route/)
    await expect.poll(() => children(daemon)).toBe('')
    expect(await daemon.stop()).toBe(0)
  })

  /** Runs `watchHost` without the daemon's check every five seconds. The result counts the reports. */
  async function watching(families: readonly Family[] = ['ipv4']) {
    const child = host.spawn([
      process.execPath,
      '--input-type=module',
      '-e',
      `import { changesOf, watchHost } from '${packageRoot}/dist/src/host/events.js'
      import { hostKernel } from '${packageRoot}/dist/src/host/netlink/host-kernel.js'
      const log = { warn: () => {} }
      const watched = changesOf(() => ${JSON.stringify(families)})
      await watchHost(hostKernel, () => process.stdout.write('.'), log, new AbortController().signal, watched)`,
    ])
    let reports = 0
    child.stdout!.on('data', (dots: Buffer) => (reports += dots.length))
    return {
      /** Resolves once the process has joined groups of the kernel's reports. */
      listening: (): Promise<void> =>
        eventually(async () => {
          const sockets = await host.output(['cat', '/proc/net/netlink'])
          const isThere = sockets.split('\n').some((row) => {
            const [, protocol, port, groups = ''] = row.trim().split(/ +/)
            return protocol === '0' && port !== '0' && /[1-9a-f]/.test(groups)
          })
          if (!isThere) throw new Error(`no process listens:\n${sockets}`)
        }),
      count: () => reports,
      async reported(change: () => Promise<unknown>): Promise<void> {
        const before = reports
        await change()
        await expect.poll(() => reports).toBeGreaterThan(before)
      },
      async stop(): Promise<void> {
        child.kill()
        await ended(child)
      },
    }
  }

  it.each([
    'link del dev flannel0',
    'link set dev flannel0 down',
    'link set dev flannel0 mtu 1300',
    'address flush dev flannel0',
    'route del 10.5.0.0/16',
    'route replace blackhole 10.5.0.0/16',
    'route add 10.5.9.0/24 via 192.168.77.254',
    'link set dev eth0 down',
    'link set dev eth0 mtu 1400',
    'address del 192.168.77.1/24 dev eth0',
    'address add 192.168.77.50/24 dev eth0',
    'route del default',
  ])('reports immediately: ip %s', async (change) => {
    for (const args of [
      'tuntap add dev flannel0 mode tun',
      'address add 10.5.1.0/32 dev flannel0',
      'link set flannel0 up',
    ])
      await ip(...args.split(' '))
    await ip('route', 'add', '10.5.0.0/16', 'dev', 'flannel0')
    const watch = await watching()
    await watch.listening()
    await watch.reported(() => ip(...change.split(' ')))
    await watch.stop()
  })

  it.each(BOTH)('reports changes of IPv6 immediately with %s, but not those of lifetimes', async (...families) => {
    await ip('address', 'add', 'fd77::1/64', 'dev', 'eth0', 'nodad', 'valid_lft', '9000', 'preferred_lft', '9000')
    // The end of duplicate address detection for the link-local address is a change, too.
    await eventually(async () => expect(await ip('-6', 'address', 'show', 'tentative')).toBe(''))
    const watch = await watching(families)
    await watch.listening()
    const renew = (): Promise<unknown> =>
      ip('address', 'change', 'fd77::1/64', 'dev', 'eth0', 'valid_lft', '9999', 'preferred_lft', '9999')
    await watch.reported(renew) // the first report
    const before = watch.count()
    for (let times = 0; times < 20; times++) await renew()
    await watch.reported(() => ip('-6', 'route', 'add', 'fd00:5::/48', 'dev', 'eth0'))
    expect(watch.count()).toBe(before + 1)
    await watch.reported(() => ip('-6', 'route', 'del', 'fd00:5::/48', 'dev', 'eth0'))
    await watch.reported(() =>
      ip('address', 'change', 'fd77::1/64', 'dev', 'eth0', 'valid_lft', '9', 'preferred_lft', '0'),
    )
    await watch.reported(() => ip('address', 'del', 'fd77::1/64', 'dev', 'eth0'))
    await watch.reported(() => ip('link', 'set', 'dev', 'eth0', 'mtu', '1400'))
    await watch.stop()
  })

  it('make the daemon repair each change, and not only in its next round', async () => {
    const daemon = start()
    await daemon.line(/flannel is ready/)
    // weftd rewrites subnet.env every 5 s, as often as it checks the device without a report.
    const rounds = (): number => count(daemon, /Wrote subnet file/)
    const route = (): Promise<string> => ip('route', 'show', '10.5.0.0/16')
    const repairsInOneRound = async (): Promise<number> => {
      const round = rounds()
      rmSync(host.subnetFile, { force: true })
      for (let times = 0; ; times++) {
        await ip('route', 'del', '10.5.0.0/16')
        await expect.poll(route).not.toBe('') // weftd logs only the first repairs of a minute
        if (rounds() > round) return times
      }
    }
    await eventually(async () => expect(await repairsInOneRound()).toBeGreaterThan(3))
  })
})

describe('rules that others delete', () => {
  it.each([
    [
      'iptables',
      '{"Network":"10.5.0.0/16"}',
      'iptables-save | grep ^-A || true',
      'iptables -F; iptables -t nat -F',
      /rules of FLANNEL-POSTRTG/,
    ],
    [
      'nft',
      '{"Network":"10.5.0.0/16","EnableNFTables":true}',
      'nft -s list ruleset',
      'nft flush ruleset',
      /the table flannel-ipv4/,
    ],
  ])('of %s are restored, and each repair is logged once', async (_title, config, list, flush, repaired) => {
    writeFileSync(join(leases, 'config'), config)
    const daemon = start(undefined, ['--ip-masq', '--iptables-resync', '1'])
    await daemon.line(/flannel is ready/)
    const rules = (): Promise<string> => host.output(['sh', '-c', list])
    const before = await rules()
    // The second repair belongs to a later check, which shows that the first repair was complete.
    for (const times of [1, 2]) {
      await host.output(['sh', '-c', flush])
      await expect.poll(() => count(daemon, repaired)).toBe(times)
      await expect.poll(rules).toBe(before)
    }
  })
})

describe('subnet.env that cannot be written', () => {
  const folder = (): string => join(host.subnetFile, '..')
  const SPOILT = [
    [
      'the disk is full',
      'mount -t tmpfs -o size=8k tmpfs "$0" && head -c 8k /dev/zero > "$0/full"',
      'ENOSPC',
      'rm "$0/full"',
    ],
    ['it is read-only', 'mount -t tmpfs -o ro tmpfs "$0"', 'EROFS', 'mount -o remount,rw "$0"'],
    ['another thing has its name', 'mkdir -p "$0/subnet.env/x"', 'EISDIR', 'rm -r "$0/subnet.env"'],
  ] as const
  it.each(SPOILT)(
    '%s: weftd logs a warning, is not ready, and carries packets until it is corrected',
    async (_title, spoil, code, repair) => {
      const other = lab.hosts[1]!.startDaemon({ args: ['--lease-dir', leases] })
      await other.line(/flannel is ready/)
      const daemon = host.startDaemon({
        args: ['--lease-dir', leases, '--healthz-port', '8471', '--healthz-ip', '127.0.0.1'],
        before: ['unshare', '--mount', 'sh', '-c', `${spoil} && exec "$@"`, folder()],
      })
      await daemon.line(new RegExp(`^W.*Failed to write subnet file: cannot write .*${code}.*; .*--subnet-file`))
      await daemon.line(/Running backend/)
      const probe = `for (const path of ['healthz', 'readyz', 'livez'])
      console.log((await fetch('http://127.0.0.1:8471/' + path)).status)`
      const ask = (): Promise<string> => host.output([process.execPath, '--input-type=module', '-e', probe])
      expect(await ask()).toBe('200\n503\n200\n')
      expect(count(daemon, /flannel is ready/)).toBe(0)
      const subnet = /Allocated lease \(ip: ([\d.]+)\.0\/24/.exec(await daemon.line(/Allocated lease/))![1]!
      await reach(lab.hosts[1]!.namespace, `${subnet}.0`)
      await host.output(['nsenter', '-t', String(daemon.process.pid), '-m', 'sh', '-c', repair, folder()])
      await daemon.line(/flannel is ready/)
      expect(await ask()).toBe('200\n200\n200\n')
      expect(await daemon.stop()).toBe(0)
    },
  )
})

describe('subnet.env', () => {
  it('is never read half-written, in 10,000 reads during rewrites, neither by the CNI plugin nor by a shell', async () => {
    const file = join(lab.folder, 'subnet.env')
    const writer = host.spawn([
      process.execPath,
      '--input-type=module',
      '-e',
      `import { writeSubnetEnv } from '${packageRoot}/dist/src/node/loops/subnet-env-file.js'
      const net = (address, prefixLength) => ({ address, prefixLength })
      for (let mtu = 1000; ; mtu = mtu === 9999 ? 1000 : mtu + 1) {
        await writeSubnetEnv(process.argv[1], {
          network: { ipv4: net(0x0a050000, 16) }, subnet: { ipv4: net(0x0a050700, 24) }, mtu, ipMasq: mtu % 2 === 0 })
        if (mtu === 1000) console.log('writing')
      }`,
      file,
    ])
    await new Promise((resolve) => writer.stdout!.once('data', resolve))

    // flannel-io/cni-plugin, flannel.go loadFlannelSubnetEnv: reads line by line and splits at the first \`=\`.
    const mtus = new Set<string>()
    for (let reads = 0; reads < 10_000 || mtus.size < 100; reads++) {
      const lines = readFileSync(file, 'utf8').split('\n')
      expect(lines.pop()).toBe('')
      const env = Object.fromEntries(lines.map((line) => line.split(/=(.*)/s, 2) as [string, string]))
      const { FLANNEL_MTU: mtu = '' } = env
      mtus.add(mtu)
      expect(env).toEqual({
        FLANNEL_NETWORK: '10.5.0.0/16',
        FLANNEL_SUBNET: '10.5.7.1/24',
        FLANNEL_MTU: expect.stringMatching(/^\d{4}$/),
        FLANNEL_IPMASQ: String(Number(mtu) % 2 === 0),
      })
    }

    // mk-docker-opts.sh sources the file.
    const script = `i=0; while [ $i -lt 10000 ]; do
      unset FLANNEL_MTU FLANNEL_IPMASQ; . "$0"; i=$((i+1))
      case "$FLANNEL_NETWORK $FLANNEL_SUBNET $FLANNEL_MTU $FLANNEL_IPMASQ" in
        '10.5.0.0/16 10.5.7.1/24 '[1-9][0-9][0-9][0-9]' '[tf]*e) ;;
        *) echo "part: $FLANNEL_MTU"; exit 1;;
      esac
    done; echo "$i reads"`
    expect(await host.output(['sh', '-c', script, file])).toBe('10000 reads\n')
    expect(writer.exitCode).toBeNull()
    writer.kill()
  })
})

describe('rules that others add next to ours', () => {
  it('before, after, or as duplicates: ours are repaired once, theirs stay', async () => {
    // With few rules a check of the rules is one call of this program.
    const calls = countCalls(lab, 'iptables-save')
    const daemon = start(undefined, ['--ip-masq', '--iptables-resync', '1'], calls.env)
    await daemon.line(/flannel is ready/)
    const nat = async (): Promise<string[]> =>
      (await host.output(['iptables-save', '-t', 'nat'])).split('\n').filter((line) => line.startsWith('-A'))
    const ours = await nat()
    const jump = ours.find((line) => line.startsWith('-A POSTROUTING'))!
    const iptables = (...args: string[]): Promise<string> => host.output(['iptables', '-w', '-t', 'nat', ...args])
    await iptables('-I', 'POSTROUTING', '-s', '198.51.100.1/32', '-j', 'ACCEPT')
    await iptables('-A', 'POSTROUTING', '-s', '198.51.100.2/32', '-j', 'ACCEPT')
    /** Waits until weftd has checked the present rules. When a second check starts, the first has ended. */
    const checked = async (): Promise<void> => {
      for (const chain of ['-N', '-X']) {
        const check = calls.more(1)
        await iptables(chain, 'OTHER') // without a change weftd does not list the rules
        await check
      }
    }
    await checked()
    const beside = ['-A POSTROUTING -s 198.51.100.1/32 -j ACCEPT', '-A POSTROUTING -s 198.51.100.2/32 -j ACCEPT']
    expect(await nat()).toEqual([beside[0], jump, beside[1], ...ours.filter((line) => line !== jump)])
    expect(count(daemon, /Repaired/)).toBe(0)

    // Add both rules in one command, because a check in between would make two repairs.
    const input = `*nat\n${jump}\n-I FLANNEL-POSTRTG -s 198.51.100.3/32 -j RETURN\nCOMMIT\n`
    await host.output(['iptables-restore', '--noflush'], { input })
    await daemon.line(/Repaired: rules of FLANNEL-POSTRTG/)
    const after = await nat()
    expect(after.filter((line) => !beside.includes(line))).toEqual(ours)
    expect(after.filter((line) => beside.includes(line))).toEqual(beside)
    await checked()
    expect(count(daemon, /Repaired/)).toBe(1)
  })
})
