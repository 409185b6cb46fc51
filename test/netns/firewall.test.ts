// firewall.test.ts - the rules with real iptables, of both kinds, and real nft, in a namespace of the test.

import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createIptables, createNftables } from '../../src/firewall/firewall.ts'
import { run as runHere, type Run } from '../../src/host/command.ts'
import { parseIpv4Net, type Ipv4Net } from '../../src/net/ipv4.ts'

const net = (text: string): Ipv4Net => {
  const parsed = parseIpv4Net(text)
  if (!parsed) throw new Error(text)
  return parsed
}
const SUBNET = net('10.5.1.0/24')
const log = { info: () => undefined, warn: () => undefined, error: () => undefined, v: () => false }
const common = { network: net('10.5.0.0/16'), masq: true, forward: true, previous: {}, plainPorts: false, log }

let namespace = ''
/** Runs inside the namespace; `suffix` chooses iptables' kind. */
const inside =
  (suffix = ''): Run =>
  (file, args, options) => {
    const name = suffix ? file.replace(/^iptables(?=$|-save|-restore)/, `iptables-${suffix}`) : file
    return runHere('ip', ['netns', 'exec', namespace, name, ...args], options)
  }

beforeEach(async () => {
  namespace = `weft-fw-${process.pid}-${randomBytes(3).toString('hex')}`
  await runHere('ip', ['netns', 'add', namespace])
})
afterEach(async () => {
  await runHere('ip', ['netns', 'del', namespace])
})

const GOLDEN = `-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.1.0/24 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`

describe.each(['nft', 'legacy'].filter((kind) => existsSync(`/usr/sbin/iptables-${kind}`)))('iptables-%s', (kind) => {
  const rules = async (run: Run, table: string) =>
    (await run('iptables-save', ['-t', table])).split('\n').filter((line) => line.startsWith('-A'))

  test("has flanneld's rules, after those of others, and mends what was flushed, deleted or reordered", async () => {
    const run = inside(kind)
    await run('iptables', ['-t', 'nat', '-A', 'POSTROUTING', '-s', '192.0.2.0/24', '-j', 'ACCEPT'])
    const firewall = createIptables({ ...common, run })
    expect(await firewall.ensure(SUBNET)).toEqual([])
    const nat = await rules(run, 'nat')
    const foreign = '-A POSTROUTING -s 192.0.2.0/24 -j ACCEPT'
    const jump = '-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG'
    expect(nat).toEqual([foreign, jump, ...GOLDEN.split('\n')])
    expect(await rules(run, 'filter')).toEqual([
      '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD',
      '-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT',
      '-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT',
    ])
    expect(await firewall.ensure(SUBNET)).toEqual([])

    const [first = ''] = GOLDEN.split('\n')
    const breaks: readonly (readonly string[])[] = [
      ['-F', 'FLANNEL-POSTRTG'],
      ['-D', 'FLANNEL-POSTRTG', '6'],
      ['-F', 'POSTROUTING'],
      ['-A', 'POSTROUTING', '-j', 'FLANNEL-POSTRTG'],
      ['-A', 'FLANNEL-POSTRTG', '-j', 'RETURN'],
    ]
    for (const args of breaks) {
      await run('iptables', ['-t', 'nat', ...args])
      expect(await firewall.ensure(SUBNET), args.join(' ')).toEqual(['rules of FLANNEL-POSTRTG'])
      expect((await rules(run, 'nat')).filter((line) => line !== foreign)).toEqual([jump, ...GOLDEN.split('\n')])
    }
    const reorder = `*nat\n-D${first.slice(2)}\n${first}\nCOMMIT\n`
    await run('iptables-restore', ['--noflush'], { input: reorder })
    expect(await firewall.ensure(SUBNET)).toEqual(['rules of FLANNEL-POSTRTG'])

    expect(await firewall.ensure(net('10.5.9.0/24'))).toEqual([])
    expect(await rules(run, 'nat')).toContain(GOLDEN.split('\n')[1]?.replace('10.5.1.0', '10.5.9.0'))

    await createNftables({ ...common, run }).raise(SUBNET)
    expect((await run('iptables-save', [])).includes('FLANNEL')).toBe(false)
    await createIptables({ ...common, run }).raise(SUBNET)
    expect(await run('nft', ['list', 'tables'])).not.toContain('flannel')
  })
})

test('nft has one table, and it comes back after the ruleset was flushed', async () => {
  const run = inside()
  const firewall = createNftables({ ...common, run })
  expect(await firewall.ensure(SUBNET)).toEqual([])
  const list = () => run('nft', ['-s', 'list', 'ruleset'])
  const before = await list()
  for (const line of [
    'meta mark 0x00004000 return',
    'ip saddr 10.5.1.0/24 ip daddr 10.5.0.0/16 return',
    'ip saddr != 10.5.0.0/16 ip daddr 10.5.1.0/24 return',
    'ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random',
    'ip daddr 10.5.0.0/16 accept',
  ]) {
    expect(before).toContain(line)
  }
  expect(await firewall.ensure(SUBNET)).toEqual([])
  await run('nft', ['flush', 'ruleset'])
  expect(await firewall.ensure(SUBNET)).toEqual(['the table flannel-ipv4'])
  expect(await list()).toBe(before)
})

test('a container is masqueraded to the outside, not to another container, with the policy of FORWARD at DROP', async () => {
  const host = inside()
  const names = { pod: `${namespace}-p`, out: `${namespace}-o`, far: `${namespace}-f` }
  const ip = (args: string) => runHere('ip', args.split(' '))
  try {
    for (const [link, name, hosts, theirs] of [
      ['pod', names.pod, '10.5.1.1/24', '10.5.1.2/24'],
      ['out', names.out, '198.51.100.1/24', '198.51.100.2/24'],
      ['far', names.far, '10.5.2.1/24', '10.5.2.2/24'],
    ] as const) {
      await ip(`netns add ${name}`)
      await ip(`-n ${namespace} link add ${link} type veth peer name eth0 netns ${name}`)
      await ip(`-n ${namespace} address add ${hosts} dev ${link}`)
      await ip(`-n ${namespace} link set ${link} up`)
      await ip(`-n ${name} address add ${theirs} dev eth0`)
      await ip(`-n ${name} link set eth0 up`)
    }
    await ip(`-n ${names.pod} route add default via 10.5.1.1`)
    await ip(`-n ${names.far} route add default via 10.5.2.1`)
    await host('sysctl', ['-qw', 'net.ipv4.ip_forward=1'])
    await host('iptables', ['-P', 'FORWARD', 'DROP'])
    // The far container refuses what comes from the host, which is what a masqueraded packet would seem to do.
    await ip(`netns exec ${names.far} iptables -A INPUT -s 10.5.2.1 -j DROP`)
    const ping = (address: string) => ip(`netns exec ${names.pod} ping -c 1 -W 1 ${address}`)

    await expect(ping('198.51.100.2')).rejects.toThrow('ping')
    await createIptables({ ...common, run: host }).ensure(SUBNET)
    // The outside knows no way to 10.5.0.0/16: only a masqueraded packet is answered.
    expect(await ping('198.51.100.2')).toContain('1 received')
    expect(await ping('10.5.2.2')).toContain('1 received')
  } finally {
    for (const name of Object.values(names)) await ip(`netns del ${name}`).catch(() => '')
  }
})
