// privileges.test.ts - the privileges that docs/running.md and the unit file grant suffice: CAP_NET_ADMIN and /dev/net/tun.

import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { getPriority } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, type Daemon, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { answers } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'iptables', 'nft', 'ping')

let lab: Lab | undefined
let etcd: Etcd | undefined
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
  lab = etcd = undefined
})

const ONLY = ['--bounding-set', '-all,+net_admin', '--inh-caps', '-all,+net_admin', '--no-new-privs']
const ROOT = ['setpriv', ...ONLY]
/** A user without files. Everybody may open the device, as on most distributions. */
const NOBODY = [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && chmod 666 /dev/net/tun && exec "$@"',
  'sh',
  'setpriv',
  '--reuid',
  '65534',
  '--regid',
  '65534',
  '--clear-groups',
  '--ambient-caps',
  '+net_admin',
  ...ONLY,
]
const NET_ADMIN = 1n << 12n
const unit = readFileSync(new URL('../../deploy/weftd.service', import.meta.url), 'utf8')

/** Returns the priority of each forwarding thread (proc_pid_stat(5): nice is the 17th field after the name). */
function priorities(pid: number): number[] {
  return readdirSync(`/proc/${pid}/task`).flatMap((id) => {
    const [, name, rest = ''] = /^\d+ \((.*)\) (.*)/.exec(readFileSync(`/proc/${pid}/task/${id}/stat`, 'utf8')) ?? []
    return name?.startsWith('weft-loop') ? [Number(rest.split(' ')[16])] : []
  })
}

describe('the eBPF program that chooses lanes', () => {
  const refused =
    /flows of which some datagrams are sent in fragments may arrive out of order \(bpf BPF_PROG_LOAD: Operation not permitted\)/
  const withBpf = ROOT.map((word) => word.replace('+net_admin', '+net_admin,+bpf'))
  it.each([
    ['is refused without CAP_BPF, which -v 1 logs', ROOT, ['-v', '1'], true],
    ['is loaded with CAP_BPF', withBpf, ['-v', '1'], false],
    ['is not loaded with one lane', ROOT, ['-v', '1', '--workers', '1'], false],
  ])('%s', async (_title, before, flags, isRefused) => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
    const daemon = host!.startDaemon({ args: ['--lease-dir', leases, ...flags], before })
    const forwarding = await daemon.line(/Forwarding between/)
    expect(daemon.lines.some((line) => refused.test(line))).toBe(isRefused)
    expect(forwarding.includes('tun-steering')).toBe(!isRefused && !flags.includes('--workers'))
  })
})

describe('the priority of the forwarding threads', () => {
  const NICE = ['--nice', '-7', '--workers', '2', '-v', '1']
  async function start(before: string[]): Promise<{ daemon: Daemon; session: string }> {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
    // A session of its own, as service managers start each service.
    const daemon = host!.startDaemon({ args: ['--lease-dir', leases, ...NICE], before: [...before, 'setsid'] })
    await daemon.line(/flannel is ready/)
    const autogroup = `/proc/${daemon.process.pid}/autogroup`
    return { daemon, session: existsSync(autogroup) ? readFileSync(autogroup, 'utf8') : '' }
  }
  const refused = /\] the forwarding threads run at the priority of weftd instead of -7 \(setpriority: .*--nice 0$/

  it('is refused without the privilege, which -v 1 logs', async () => {
    const { daemon } = await start(['prlimit', '--nice=0', ...ROOT])
    await daemon.line(refused)
    const own = getPriority(daemon.process.pid)
    expect(priorities(daemon.process.pid!)).toEqual([own, own])
    expect(daemon.lines.filter((line) => /^[EW].*priority/.test(line))).toEqual([])
  })

  const more = '-all,+net_admin,+sys_nice'
  it.for([
    ['CAP_SYS_NICE', ['setpriv', '--bounding-set', more, '--inh-caps', more, '--no-new-privs']],
    ['RLIMIT_NICE, as the unit has it', ['prlimit', '--nice=40', ...ROOT]], // setrlimit(2): the lowest nice value is 20 minus the limit
  ] as const)('is granted with %s, also within the session', async ([, before], { skip }) => {
    const limits = before[0] === 'prlimit' ? before.slice(0, 2) : []
    const { code, stderr } = await execute([...limits, 'nice', '-n', '-7', 'true'])
    skip(code !== 0 || stderr !== '', `this machine's root may not: ${stderr.trim()}`)
    expect(unit).toContain('\nLimitNICE=-20\n')
    const { daemon, session } = await start([...before])
    expect(priorities(daemon.process.pid!)).toEqual([-7, -7])
    expect(session === '' || session.endsWith('nice -7\n')).toBe(true)
    expect(daemon.lines.filter((line) => refused.test(line))).toEqual([])
  })
})

const LEGACY = '/usr/sbin/xtables-legacy-multi'
const NFT = '/usr/sbin/xtables-nft-multi'

/** Makes a folder in the lab where the commands of iptables are those of the binary `multi`. Returns the folder's path. */
function makeBin(multi: string): string {
  const bin = join(lab!.folder, 'bin')
  mkdirSync(bin)
  for (const command of ['iptables', 'ip6tables'])
    for (const suffix of ['', '-save', '-restore']) symlinkSync(multi, join(bin, `${command}${suffix}`))
  return bin
}

describe('with only CAP_NET_ADMIN', () => {
  /** Starts weftd as root on the first host, and as a user without files on the second host. */
  async function start(
    config: object,
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
  ): Promise<readonly Daemon[]> {
    etcd = await startEtcd({ namespace: `${lab!.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', JSON.stringify({ Network: '10.5.0.0/16', ...config }))
    // The unprivileged user must be able to write its subnet.env.
    chmodSync(lab!.folder, 0o755)
    chmodSync(dirname(lab!.hosts[1]!.subnetFile), 0o777)
    const daemons = lab!.hosts.map((host, index) =>
      host.startDaemon({
        args: ['--etcd-endpoints', etcd!.endpoint, ...args],
        before: index === 0 ? ROOT : NOBODY,
        env: { WIREGUARD_KEY_FILE: join(dirname(host.subnetFile), 'wgkey'), ...env },
      }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    for (const [index, daemon] of daemons.entries()) {
      // Each command of the prefix executes the next one, so the pid is weftd's.
      const status = readFileSync(`/proc/${daemon.process.pid}/status`, 'utf8')
      for (const set of ['CapPrm', 'CapEff', 'CapBnd'])
        expect(BigInt(`0x${new RegExp(`^${set}:\t(.*)$`, 'm').exec(status)![1]}`), set).toBe(NET_ADMIN)
      expect(/^Uid:\t(\d+)/m.exec(status)![1]).toBe(index === 0 ? '0' : '65534')
    }
    return daemons
  }

  it.each(['native', 'dgram'])('root and an unnamed user exchange packets with the %s engine', async (engine) => {
    lab = await createLab({ hosts: 2 })
    const daemons = await start({}, ['--engine', engine])
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    await reach(pods[0]!.namespace, pods[1]!.address)
    await answers(pods[0]!.namespace, pods[1]!.address)
    expect(daemons.flatMap((daemon) => daemon.lines.filter((line) => line.startsWith('E')))).toEqual([])
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })

  it.for([
    // The last column is the type of device that the kernel must have.
    ['udp', 'iptables', { Type: 'udp' }, 'flannel0', ''],
    ['vxlan by the kernel', 'iptables', { Type: 'vxlan', DataPath: 'kernel' }, 'flannel.1', 'vxlan id 1 dstport 8472'],
    ['vxlan by weftd', 'nft', { Type: 'vxlan', DataPath: 'userspace' }, 'flannel.1', ''],
    ['wireguard by the kernel', 'nft', { Type: 'wireguard', DataPath: 'kernel' }, 'flannel-wg', 'wireguard'],
    ['wireguard by weftd', 'nft', { Type: 'wireguard', DataPath: 'userspace' }, 'flannel-wg', ''],
    ['host-gw', 'iptables', { Type: 'host-gw' }, 'eth0', ''],
    ['ipip', 'nft', { Type: 'ipip' }, 'flannel.ipip', 'ipip local 192.0.2.1'],
  ] as const)(
    'root and an unnamed user carry packets by %s, with the rules of %s, and repair them',
    async ([, rules, backend, device, type], { skip }) => {
      if (type !== '') {
        const { code, stderr } = await execute(`unshare --net ip link add probe type ${type}`.split(' '))
        skip(code !== 0, `no ${type} in the kernel: ${stderr.trim()}; npm run test:vm has one`)
      }
      skip(rules === 'iptables' && !existsSync(NFT), `no ${NFT}`)
      lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
      const families = backend.Type === 'ipip' ? {} : { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
      const daemons = await start(
        { Backend: backend, EnableNFTables: rules === 'nft', ...families },
        ['--ip-masq'],
        rules === 'nft' ? {} : { PATH: `${makeBin(NFT)}:${process.env['PATH']}` },
      )
      const [from, to] = [await lab.hosts[0]!.startPod(), await lab.hosts[1]!.startPod()]
      const addresses = [to.address, ...(to.ipv6 === undefined ? [] : [to.ipv6])]
      expect(addresses).toHaveLength('EnableIPv6' in families ? 2 : 1)
      for (const address of addresses) await reach(from.namespace, address)
      const postrouting =
        rules === 'nft'
          ? ['nft', 'list', 'chain', 'ip', 'flannel-ipv4', 'postrtg']
          : ['iptables-nft', '-t', 'nat', '-S']
      for (const [index, host] of lab.hosts.entries()) {
        const daemon = daemons[index]!
        expect(await host.output(postrouting)).toMatch(/masquerade/i)
        await host.output(
          rules === 'nft'
            ? ['nft', 'flush', 'chain', 'ip', 'flannel-ipv4', 'postrtg']
            : ['iptables-nft', '-t', 'nat', '-F', 'FLANNEL-POSTRTG'],
        )
        await eventually(async () => expect(await host.output(postrouting)).toMatch(/masquerade/i))
        const route = (await host.output('ip route show root 10.5.0.0/16'.split(' ')))
          .split('\n')
          .find((line) => line.includes(` dev ${device} `))!
        await host.output(['ip', 'route', 'del', route.split(' ')[0]!])
        await daemon.line(/Repaired: the route to .* was gone/)
        // weftd turns router advertisements off in the device, which is a setting below /proc/sys/net.
        if (type.startsWith('vxlan'))
          for (const name of ['flannel.1', 'flannel-v6.1'])
            expect(await host.output(['cat', `/proc/sys/net/ipv6/conf/${name}/accept_ra`])).toBe('0\n')
      }
      for (const address of addresses) await reach(from.namespace, address)
      expect(daemons.flatMap(({ lines }) => lines.filter((line) => line.startsWith('E')))).toEqual([])
      for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
    },
  )
})

/** Mounts the file system as ProtectSystem=strict and RuntimeDirectory= do: only `folder` is writable. */
const strict = (folder: string): string[] => [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mount --bind "$0" "$0" && mount -o remount,bind,ro / && ! touch /run/weft-test 2>/dev/null && exec "$@"',
  folder,
]

describe('with the privileges of the unit, --ip-masq', () => {
  /** Starts a daemon on one host and waits until it is ready; `multi` is the binary behind iptables. */
  async function start(
    config: object,
    { multi, before = ROOT, env = {} }: { multi?: string; before?: string[]; env?: Record<string, string> } = {},
  ): Promise<Daemon> {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts
    const folder = dirname(host!.subnetFile)
    const leases = join(folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...config }))
    const bin = multi === undefined ? [] : [makeBin(multi)]
    const daemon = host!.startDaemon({
      args: ['--lease-dir', leases, '--ip-masq'],
      before: [...strict(folder), ...before],
      env: { PATH: [...bin, process.env['PATH']].join(':'), ...env },
    })
    await daemon.line(/flannel is ready/)
    expect(await host!.output(['ip', 'route', 'show', '10.5.0.0/16'])).toContain('dev flannel0')
    return daemon
  }
  const errors = ({ lines }: Daemon): string[] => lines.filter((line) => line.startsWith('E'))
  const nat = (tool: string): Promise<string> => lab!.hosts[0]!.output([`${tool}-save`, '-t', 'nat'])

  it('sets its rules with iptables-nft and with nft', async ({ skip }) => {
    skip(!existsSync(NFT), `no ${NFT}`)
    const iptables = await start({}, { multi: NFT })
    expect(errors(iptables)).toEqual([])
    expect(await nat('iptables-nft')).toContain(
      '-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG',
    )
    await lab!.close()
    const nftables = await start({ EnableNFTables: true })
    expect(errors(nftables)).toEqual([])
    expect(await lab!.hosts[0]!.output(['nft', 'list', 'chain', 'ip', 'flannel-ipv4', 'postrtg'])).toContain(
      'masquerade',
    )
  })

  it('carries packets without rules if iptables is iptables-legacy, and logs the reason', async ({ skip }) => {
    skip(!existsSync(LEGACY), `no ${LEGACY}`)
    const said = errors(await start({}, { multi: LEGACY }))
    // One line for masquerading and one for forwarding, for flanneld's two chains.
    const because =
      /\] Failed to bootstrap IPTables: .*legacy iptables needs .* CAP_NET_RAW in addition to CAP_NET_ADMIN/
    expect(said).toEqual([expect.stringMatching(because), expect.stringMatching(because)])
  })

  it("sets its rules with iptables-legacy and the drop-in that the unit's comment names", async ({ skip }) => {
    skip(!existsSync(LEGACY), `no ${LEGACY}`)
    const [, capability] = /^# +CapabilityBoundingSet=CAP_(\S+)$/m.exec(unit) ?? []
    const [, touched] = /^# +ExecStartPre=\+\S+touch (\S+)$/m.exec(unit) ?? []
    expect([capability, touched]).toEqual(['NET_RAW', '/run/xtables.lock'])
    const more = `-all,+net_admin,+${capability!.toLowerCase()}`
    const before = ['setpriv', '--bounding-set', more, '--inh-caps', more, '--no-new-privs']
    writeFileSync(touched!, '', { flag: 'a', mode: 0o600 })
    expect(errors(await start({}, { multi: LEGACY, before }))).toEqual([])
    expect(await nat('iptables-legacy')).toContain(':FLANNEL-POSTRTG ')
    await lab!.close()
    // Without a lock file, which cannot be created on a read-only file system.
    const env = { XTABLES_LOCKFILE: '/run/weft-no-such-lock' }
    const said = errors(await start({}, { multi: LEGACY, before, env }))
    expect(said[0]).toContain('/run/weft-no-such-lock: Read-only file system')
  })
})

describe('a weftd that cannot forward', () => {
  const NO_CAPABILITY = ['setpriv', '--bounding-set', '-net_admin', '--inh-caps', '-all', '--no-new-privs']
  const NO_TUN = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs tmpfs /dev/net && exec "$@"', 'sh']
  it.each<readonly [string, string, readonly string[], RegExp]>([
    [
      'root without CAP_NET_ADMIN',
      'udp',
      NO_CAPABILITY,
      /CAP_NET_ADMIN; give it to the container: .*--cap-add NET_ADMIN/,
    ],
    ['root without CAP_NET_ADMIN', 'host-gw', NO_CAPABILITY, /CAP_NET_ADMIN; give it to the container/],
    [
      'root without CAP_NET_ADMIN',
      'vxlan',
      NO_CAPABILITY,
      /not permitted; run as root or with the capability CAP_NET_ADMIN/,
    ],
    [
      'root without CAP_NET_ADMIN',
      'wireguard',
      NO_CAPABILITY,
      /not permitted; run as root or with the capability CAP_NET_ADMIN/,
    ],
    ['a host without /dev/net/tun', 'udp', NO_TUN, /\/dev\/net\/tun cannot be opened \(ENOENT\); .*modprobe tun/],
  ])('takes no lease: %s, %s', async (_what, type, before, line) => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: type } }))
    const daemon = host!.startDaemon({ args: ['--lease-dir', leases], before })
    await daemon.line(line)
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
    expect(readdirSync(join(leases, 'subnets'))).toEqual([])
  })

  it('advises an ordinary user to be root, and not to look for another weftd', async () => {
    lab = await createLab({ hosts: 1 })
    chmodSync(lab.folder, 0o755)
    const [host] = lab.hosts
    const daemon = host!.startDaemon({ args: ['--lease-dir', '/tmp'], before: NOBODY })
    await daemon.line(
      /^E.* this user may not write .*: run weftd as root|this user may not write .*; run weftd as root/,
    )
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
    expect(daemon.lines.filter((line) => /another weftd/.test(line))).toEqual([])
  })
})
