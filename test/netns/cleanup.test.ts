// cleanup.test.ts - `weft cleanup` removes everything that weft and every version of flannel left, and nothing else.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { execute, output, type Finished } from '../../lab/command.ts'
import { createLab, packageRoot } from '../../lab/lab.ts'
import { asIpv6 } from '../support/as-ipv6.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'iptables', 'nft')

const weft = join(packageRoot, 'bin/weft')
const NOTHING = 'Nothing of flannel or weft is left on this host.\n'

let namespace: string
let folder: string
let subnetFile: string
let children: ChildProcess[]

beforeEach(async () => {
  namespace = `weft-clean-${process.pid}-${randomBytes(3).toString('hex')}`
  folder = mkdtempSync(join(tmpdir(), 'weft-clean-'))
  subnetFile = join(folder, 'subnet.env')
  children = []
  await output(['ip', 'netns', 'add', namespace])
})
afterEach(async () => {
  for (const child of children) child.kill('SIGKILL')
  rmSync(folder, { recursive: true })
  await output(['ip', 'netns', 'del', namespace])
})

const inside = (...command: string[]): string[] => ['ip', 'netns', 'exec', namespace, ...command]
const here = (...command: string[]): Promise<string> => output(inside(...command))
const feed = (input: string, ...command: string[]): Promise<string> => output(inside(...command), { input })
const cleanup = (...args: string[]): Promise<Finished> =>
  execute(inside(process.execPath, weft, 'cleanup', '-f', subnetFile, ...args))
/** Runs it on a host with only these programs. weft finds programs in /usr/sbin whatever PATH is, so an empty folder hides that one. */
function cleanupWith(programs: readonly string[], ...args: string[]): Promise<Finished> {
  const path = mkdtempSync(join(folder, 'bin-'))
  for (const name of programs)
    copyFileSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(path, name))
  const hiding = 'mount -t tmpfs none /usr/sbin && exec "$@"'
  const command = ['env', `PATH=${path}`, process.execPath, weft, 'cleanup', '-f', subnetFile, ...args]
  return execute(inside('unshare', '--mount', 'sh', '-c', hiding, 'sh', ...command))
}

/** Returns everything that a program could have changed, without counters and dates. */
async function state(): Promise<string> {
  const commands = [
    ['iptables-nft-save'],
    ['iptables-legacy-save'],
    ['ip6tables-nft-save'],
    ['ip6tables-legacy-save'],
    ['nft', '-s', 'list', 'tables'],
    ['ip', '-br', 'link'],
    ['ip', '-4', 'route', 'show', 'table', 'all'],
    ['ip', '-6', 'route', 'show', 'table', 'main'],
  ]
  const parts = await Promise.all(commands.map((command) => here(...command)))
  return [...parts, String(existsSync(subnetFile))]
    .join('\n')
    .replaceAll(/^#.*\n/gm, '')
    .replaceAll(/\[\d+:\d+\]/g, '')
}

/** Rules in the same chains that are not flannel's, although some look similar. */
const FOREIGN = `*nat
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 10.9.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE
-A POSTROUTING -s 10.5.0.0/16 -o eth1 -j MASQUERADE
COMMIT
*filter
-A FORWARD -s 10.9.0.0/16 -j ACCEPT
-A FORWARD -d 10.9.0.0/16 -j ACCEPT
-A FORWARD -s 10.5.0.0/16 -j DROP
COMMIT
`
const CURRENT = `*nat
:FLANNEL-POSTRTG - [0:0]
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
COMMIT
`
const COMMENTED = `*nat
-A POSTROUTING -s 10.6.0.0/16 -d 10.6.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A POSTROUTING ! -s 10.6.0.0/16 -d 10.6.1.0/24 -m comment --comment "flanneld masq" -j RETURN
COMMIT
`
const UNCOMMENTED = `*nat
-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN
-A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.1.0/24 -j RETURN
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE
COMMIT
*filter
-A FORWARD -s 10.5.0.0/16 -j ACCEPT
-A FORWARD -d 10.5.0.0/16 -j ACCEPT
COMMIT
`
const SIX = `*nat
-A POSTROUTING -s fd00:1::/48 -d fd00:1::/48 -m comment --comment "flanneld masq" -j RETURN
COMMIT
`

async function addForeign(): Promise<void> {
  for (const tool of ['iptables-nft', 'iptables-legacy']) await feed(FOREIGN, `${tool}-restore`, '--noflush')
  await feed(
    FOREIGN.replaceAll(/10\.\S+/g, 'fd00:9::/48').replaceAll(/172\.\S+|224\.\S+/g, 'fd00:a::/64'),
    'ip6tables-nft-restore',
    '--noflush',
  )
  await feed('add table inet other', 'nft', '-f', '-')
  await here('ip', 'link', 'set', 'lo', 'up')
  // The kind or the number of each of these devices shows that it is not flannel's.
  await here('ip', 'link', 'add', 'flannel.7', 'type', 'bridge')
  await here('ip', 'link', 'add', 'flannel.8', 'type', 'vxlan', 'id', '9', 'dstport', '8472', 'dev', 'lo')
  await here('ip', 'tuntap', 'add', 'flannel9', 'mode', 'tap')
  await here('ip', 'route', 'add', 'blackhole', '10.99.0.0/16')
  await here('ip', 'route', 'add', 'unreachable', '10.98.0.0/16')
  await here('ip', 'route', 'add', 'unreachable', 'default', 'metric', '4294967295')
}

describe('weft cleanup', () => {
  beforeEach(({ skip }) => {
    for (const path of ['/usr/sbin/iptables-legacy', '/usr/sbin/iptables-nft']) skip(!existsSync(path), `no ${path}`)
  })

  it('reports that there is nothing to remove', async () => {
    expect(await cleanup()).toMatchObject({ code: 0, stdout: NOTHING, stderr: '' })
    // A dry run creates nothing: no table of iptables-legacy, which would start connection tracking, and none of nft.
    expect(await here('cat', '/proc/net/ip_tables_names')).toBe('')
    expect(await here('nft', 'list', 'tables')).toBe('')
  })

  it('removes everything that any version left, with a line for each, and nothing else', async () => {
    await addForeign()
    const before = await state()
    await feed(CURRENT + COMMENTED, 'iptables-nft-restore', '--noflush')
    await feed(UNCOMMENTED, 'iptables-legacy-restore', '--noflush')
    await feed(SIX, 'ip6tables-nft-restore', '--noflush')
    await feed(
      'add table ip flannel-ipv4; add chain ip flannel-ipv4 postrtg; add table ip6 flannel-ipv6',
      'nft',
      '-f',
      '-',
    )
    await here('ip', 'link', 'add', 'flannel.1', 'type', 'vxlan', 'id', '1', 'dstport', '8473', 'dev', 'lo')
    await here('ip', 'link', 'set', 'flannel.1', 'up')
    await here('ip', 'route', 'add', '10.5.2.0/24', 'via', '10.5.2.0', 'dev', 'flannel.1', 'onlink')
    await here('ip', 'tuntap', 'add', 'flannel0', 'mode', 'tun')
    await here('ip', 'link', 'set', 'flannel0', 'up')
    await here('ip', 'route', 'add', '10.5.0.0/16', 'dev', 'flannel0')
    await here('ip', 'route', 'add', 'blackhole', '10.5.1.0/24', 'metric', '4294967295')
    writeFileSync(
      subnetFile,
      'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n',
    )

    const full = await state()
    const dry = await cleanup('--dry-run')
    expect(dry).toMatchObject({ code: 0, stderr: '' })
    expect(await state()).toBe(full)

    const done = await cleanup()
    expect(done).toMatchObject({ code: 0, stderr: '' })
    expect(await state()).toBe(before)
    expect(done.stdout).toBe(dry.stdout.replaceAll(/^would remove/gm, 'removed'))
    const expected = [
      'route 10.5.0.0/16 dev flannel0',
      'device flannel0 (tun)',
      'route 10.5.2.0/24 via 10.5.2.0 dev flannel.1',
      'device flannel.1 (vxlan)',
      'route blackhole 10.5.1.0/24',
      ...rulesOf(CURRENT, 'iptables-nft'),
      'iptables-nft nat: -N FLANNEL-POSTRTG',
      'iptables-nft filter: -N FLANNEL-FWD',
      ...rulesOf(COMMENTED, 'iptables-nft'),
      ...rulesOf(UNCOMMENTED, 'iptables-legacy'),
      ...rulesOf(SIX, 'ip6tables-nft'),
      'nft: table ip flannel-ipv4',
      'nft: table ip6 flannel-ipv6',
      `file ${subnetFile}`,
    ]
    expect(done.stdout.trim().split('\n').toSorted()).toEqual(expected.map((thing) => `removed ${thing}`).toSorted())

    expect(await cleanup()).toMatchObject({ code: 0, stdout: NOTHING, stderr: '' })
    expect(await state()).toBe(before)
  })

  it('removes everything that a dual-stack daemon left with either firewall, and nothing else', async () => {
    await addForeign()
    await feed(asIpv6(FOREIGN), 'ip6tables-legacy-restore', '--noflush')
    const before = await state()
    for (const kind of ['nft', 'legacy']) {
      await feed(CURRENT, `iptables-${kind}-restore`, '--noflush')
      await feed(asIpv6(CURRENT), `ip6tables-${kind}-restore`, '--noflush')
    }
    await feed('add table ip6 flannel-ipv6; add chain ip6 flannel-ipv6 forward', 'nft', '-f', '-')
    await here('ip', 'link', 'add', 'flannel-v6.1', 'type', 'vxlan', 'id', '1', 'dstport', '8473', 'dev', 'lo')
    await here('ip', 'link', 'set', 'flannel-v6.1', 'up')
    await here('ip', '-6', 'address', 'add', 'fd00:5:0:1::/128', 'dev', 'flannel-v6.1')
    await here('ip', '-6', 'route', 'add', 'fd00:5:0:2::/64', 'via', 'fd00:5:0:2::', 'dev', 'flannel-v6.1', 'onlink')
    await here('ip', 'tuntap', 'add', 'flannel-v6.7', 'mode', 'tun') // a device of a daemon that carried vxlan itself
    await here('ip', 'link', 'set', 'flannel-v6.7', 'up')
    await here('ip', '-6', 'route', 'add', 'fd00:7::/48', 'dev', 'flannel-v6.7')
    await here('ip', '-6', 'route', 'add', 'blackhole', 'fd00:5:0:1::/64', 'metric', '4294967295')
    // subnet.env does not name a network that was removed from the configuration.
    await here('ip', '-6', 'route', 'add', 'unreachable', 'fd00:8::/48', 'metric', '4294967295')
    writeFileSync(
      subnetFile,
      'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n' +
        'FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n',
    )
    const done = await cleanup()
    expect(done).toMatchObject({ code: 0, stderr: '' })
    expect(await state()).toBe(before)
    const expected = [
      'route fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel-v6.1',
      'device flannel-v6.1 (vxlan)',
      'route fd00:7::/48 dev flannel-v6.7',
      'device flannel-v6.7 (tun)',
      'route blackhole fd00:5:0:1::/64',
      'the unreachable route to fd00:8::/48',
      ...['iptables-nft', 'iptables-legacy', 'ip6tables-nft', 'ip6tables-legacy'].flatMap((tool) => [
        ...rulesOf(tool.startsWith('ip6') ? asIpv6(CURRENT) : CURRENT, tool),
        `${tool} nat: -N FLANNEL-POSTRTG`,
        `${tool} filter: -N FLANNEL-FWD`,
      ]),
      'nft: table ip6 flannel-ipv6',
      `file ${subnetFile}`,
    ]
    expect(done.stdout.trim().split('\n').toSorted()).toEqual(expected.map((thing) => `removed ${thing}`).toSorted())
    expect(await cleanup()).toMatchObject({ code: 0, stdout: NOTHING, stderr: '' })
  })

  it("keeps rules without a comment if nothing shows that their network was flannel's", async () => {
    await feed(UNCOMMENTED.slice(UNCOMMENTED.indexOf('*filter')), 'iptables-nft-restore', '--noflush')
    expect(await cleanup()).toMatchObject({ code: 0, stdout: NOTHING })
  })

  it('removes rules of iptables-nft without iptables, and names what it cannot see', async () => {
    await feed(FOREIGN, 'iptables-nft-restore', '--noflush')
    await feed(asIpv6(FOREIGN), 'ip6tables-nft-restore', '--noflush')
    const before = await state()
    await feed(CURRENT, 'iptables-nft-restore', '--noflush')
    await feed(asIpv6(CURRENT), 'ip6tables-nft-restore', '--noflush')
    const done = await cleanupWith(['ip', 'nft'])
    expect(done).toMatchObject({ code: 0, stderr: '' })
    expect(done.stdout).toBe(
      ['ip', 'ip6']
        .flatMap((family) => [
          `nft ${family} nat: jump from POSTROUTING to FLANNEL-POSTRTG`,
          `nft ${family} nat: chain FLANNEL-POSTRTG (2 rules)`,
          `nft ${family} filter: jump from FORWARD to FLANNEL-FWD`,
          `nft ${family} filter: chain FLANNEL-FWD (2 rules)`,
        ])
        .map((thing) => `removed ${thing}\n`)
        .join(''),
    )
    expect(await state()).toBe(before)

    await feed(CURRENT, 'iptables-legacy-restore', '--noflush')
    await feed(asIpv6(CURRENT), 'ip6tables-legacy-restore', '--noflush')
    const unseen = (name: string): string =>
      `weft cleanup: rules may stay: the legacy kind of ${name} has tables here (nat, filter), and ${name}-legacy, ` +
      'which can show their rules, is not installed\n'
    expect(await cleanupWith(['ip', 'nft'])).toMatchObject({
      code: 1,
      stderr: unseen('iptables') + unseen('ip6tables'),
    })
    writeFileSync(subnetFile, 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1472\n')
    expect((await cleanupWith(['ip', 'nft'])).stderr).toContain(`weft cleanup: ${subnetFile} stays`)
    expect(existsSync(subnetFile)).toBe(true)
    rmSync(subnetFile)
  })

  it('keeps subnet.env until all other items are removed, because it finds some items only with this file', async () => {
    const uncommented = UNCOMMENTED.slice(UNCOMMENTED.indexOf('*filter'))
    await feed(uncommented, 'iptables-nft-restore', '--noflush')
    writeFileSync(subnetFile, 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1472\n')
    const failed = await cleanupWith(['iptables-nft-save', 'nft'])
    expect(failed.code).toBe(1)
    expect(failed.stderr).toContain('cannot remove iptables-nft filter: -A FORWARD -s 10.5.0.0/16 -j ACCEPT: ')
    expect(failed.stderr).toContain(`weft cleanup: ${subnetFile} stays, because the next weft cleanup needs this file`)
    expect(existsSync(subnetFile)).toBe(true)
    const done = await cleanup()
    expect(done).toMatchObject({ code: 0, stderr: '' })
    expect(done.stdout).toBe(
      [...rulesOf(uncommented, 'iptables-nft'), `file ${subnetFile}`].map((thing) => `removed ${thing}\n`).join(''),
    )
    expect(await cleanup()).toMatchObject({ code: 0, stdout: NOTHING })
  })

  it('keeps subnet.env while no tool can list the rules, and removes the key of a weftd that was killed', async () => {
    await feed(UNCOMMENTED, 'iptables-legacy-restore', '--noflush')
    writeFileSync(subnetFile, 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1472\n')
    const key = join(folder, '.wgkey.0123456789abcdef')
    writeFileSync(key, 'a key')
    const failed = await cleanupWith(['ip', 'nft'])
    expect(failed).toMatchObject({ code: 1, stdout: `removed file ${key}\n` })
    expect(failed.stderr).toContain(`weft cleanup: ${subnetFile} stays, because the next weft cleanup needs this file`)
    const done = await cleanup()
    expect(done).toMatchObject({ code: 0, stderr: '' })
    expect(done.stdout).toBe(
      [...rulesOf(UNCOMMENTED, 'iptables-legacy'), `file ${subnetFile}`].map((thing) => `removed ${thing}\n`).join(''),
    )
  })

  it('reports a table of nftables mode that it cannot remove, because nft is not installed', async () => {
    await feed('add table ip flannel-ipv4', 'nft', '-f', '-')
    expect(await cleanupWith(['ip'])).toMatchObject({
      code: 1,
      stdout: '',
      stderr:
        'weft cleanup: cannot remove nft: table ip flannel-ipv4: nft is not installed; install the package nftables\n',
    })
    expect(await here('nft', 'list', 'tables')).toBe('table ip flannel-ipv4\n')
  })

  it('empties but keeps a chain that another rule jumps to, and reports it', async () => {
    await feed(CURRENT, 'iptables-nft-restore', '--noflush')
    await here('iptables-nft', '-t', 'nat', '-A', 'POSTROUTING', '-o', 'eth1', '-j', 'FLANNEL-POSTRTG')
    const done = await cleanup()
    expect(done.code).toBe(1)
    expect(done.stderr).toContain('iptables-nft nat: -A POSTROUTING -o eth1 -j FLANNEL-POSTRTG')
    const save = await here('iptables-nft-save')
    expect(save.match(/^.*FLANNEL.*$/gm)).toEqual([
      expect.stringMatching(/^:FLANNEL-POSTRTG /),
      '-A POSTROUTING -o eth1 -j FLANNEL-POSTRTG',
    ])
  })

  it("keeps a file that is not flannel's, and refuses unknown arguments", async () => {
    writeFileSync(subnetFile, 'PATH=/bin\n')
    expect(await cleanup()).toMatchObject({ code: 0, stdout: NOTHING })
    expect(existsSync(subnetFile)).toBe(true)
    const bad = await cleanup('--force')
    expect([bad.code, bad.stdout]).toEqual([2, ''])
    expect(bad.stderr).toMatch(/^weft cleanup: .*--force.*; see weft cleanup -h\n$/)
  })

  it('refuses while flanneld runs in this network namespace, but not in another', async () => {
    await feed(CURRENT, 'iptables-nft-restore', '--noflush')
    const before = await state()
    const start = async (command: readonly string[]): Promise<ChildProcess> => {
      const child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 'pipe', 'ignore'] })
      children.push(child)
      await new Promise((resolve) => child.stdout.once('data', resolve))
      return child
    }
    const named = ['-c', 'echo up; exec -a /opt/bin/flanneld sleep 600']
    await start(['bash', ...named]) // a process on the host of this test, in another network namespace
    expect(await cleanup('--dry-run')).toMatchObject({ code: 0, stderr: '' })

    const child = await start(inside('bash', ...named))
    const refused = `weft cleanup: flanneld still runs (pid ${child.pid}); stop it first, and then clean up\n`
    await expect.poll(async () => (await cleanup('--dry-run')).stderr).toBe(refused)
    expect(await cleanup()).toMatchObject({ code: 1, stdout: '', stderr: refused })
    expect(await state()).toBe(before)
  })
})

/** Returns the lines that are printed for the restored rules. */
function rulesOf(restore: string, tool: string): string[] {
  let table = ''
  return restore.split('\n').flatMap((line) => {
    if (line.startsWith('*')) table = line.slice(1)
    return line.startsWith('-A') ? [`${tool} ${table}: ${line}`] : []
  })
}

describe('while weftd runs', () => {
  it('removes nothing while weftd runs, and everything after weftd has ended', async () => {
    const lab = await createLab({ hosts: 1 })
    try {
      const [host] = lab.hosts
      const leases = join(lab.folder, 'leases')
      mkdirSync(leases)
      writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
      const daemon = host!.startDaemon({ args: ['--lease-dir', leases, '--ip-masq'] })
      await daemon.line(/flannel is ready/)
      const clean = (...args: string[]) =>
        host!.run([process.execPath, weft, 'cleanup', '-f', host!.subnetFile, ...args])
      const refused = `weft cleanup: weftd still runs (pid ${daemon.process.pid}); stop it first, and then clean up\n`
      expect(await clean()).toMatchObject({ code: 1, stdout: '', stderr: refused })

      // `weft cleanup` finds a process whose name is hidden, as in a container, because the process holds the device.
      expect(await daemon.stop()).toBe(0)
      const other = join(lab.folder, 'overlay')
      symlinkSync(join(packageRoot, 'bin/weftd'), other)
      const hidden = host!.spawn([
        process.execPath,
        other,
        '--iface',
        'eth0',
        '--subnet-file',
        host!.subnetFile,
        '--lease-dir',
        leases,
        '--ip-masq',
      ])
      let said = ''
      await new Promise<void>((resolve, reject) => {
        hidden.stderr!.on('data', (text: Buffer) => (said += text.toString()).includes('flannel is ready') && resolve())
        hidden.once('exit', () => reject(new Error(`the daemon ended: ${said}`)))
      })
      const held = 'weft cleanup: a process still forwards through flannel0; stop it first, and then clean up\n'
      expect(await clean()).toMatchObject({ code: 1, stdout: '', stderr: held })
      const ended = new Promise((resolve) => hidden.once('exit', resolve))
      hidden.kill()
      await ended

      const done = await clean()
      expect(done).toMatchObject({ code: 0, stderr: '' })
      expect(done.stdout).toContain(`removed file ${host!.subnetFile}\n`)
      expect(await host!.output(['iptables-save'])).not.toMatch(/flannel/i)
      expect(await clean()).toMatchObject({ code: 0, stdout: NOTHING })
    } finally {
      await lab.close()
    }
  })
})

it('removes the routes of both families to other nodes, and no other routes', async () => {
  const IPV6 = 'FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\n'
  writeFileSync(subnetFile, `FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n${IPV6}`)
  const ip = (text: string): Promise<string> => here('ip', ...text.split(' '))
  await ip('link add eth0 type veth peer name other')
  for (const each of ['link set eth0 up', 'link set other up', 'address add 192.0.2.1/24 dev eth0']) await ip(each)
  await ip('-6 address add 2001:db8::1/64 dev eth0 nodad')
  const foreign = [
    'route add 10.6.2.0/24 via 192.0.2.2 dev eth0',
    'route add 10.5.2.0/24 via 192.0.2.2 dev eth0 proto static metric 7',
    'route add 10.5.1.0/25 via 192.0.2.2 dev eth0 proto static',
    'route add 10.5.0.0/16 via 192.0.2.2 dev eth0',
    'route add 10.5.1.128/25 via 192.0.2.9 dev eth0',
    'route add 10.5.9.9 via 192.0.2.9 dev eth0',
    'route add 10.5.128.0/17 via 192.0.2.9 dev eth0',
  ]
  for (const each of foreign) await ip(each)
  const before = await state()
  await ip('route add 10.5.2.0/24 via 192.0.2.2 dev eth0')
  await ip('-6 route add fd00:5:0:2::/64 via 2001:db8::2 dev eth0')
  const would = await cleanup('--dry-run')
  expect(would.stdout).toContain('would remove route 10.5.2.0/24 via 192.0.2.2 dev eth0\n')
  const done = await cleanup()
  expect(done).toMatchObject({ code: 0, stderr: '' })
  expect(done.stdout).toContain('removed route 10.5.2.0/24 via 192.0.2.2 dev eth0\n')
  expect(done.stdout).toContain('removed route fd00:5:0:2::/64 via 2001:db8::2 dev eth0\n')
  expect(await state()).toBe(before.replace(/true$/, 'false'))
})
