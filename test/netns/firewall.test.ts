// firewall.test.ts - the firewall rules with real iptables of both kinds and with real nft, in a namespace of the test.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, copyFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { ended, output } from '../../lab/command.ts'
import { createLab, EVENT_MS, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { run as runHere, type Run } from '../../src/host/command.ts'
import type { Nets } from '../../src/net/address.ts'
import { parseIpv4Net } from '../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../src/net/ipv6.ts'
import type { Firewall } from '../../src/path/firewall/families.ts'
import { createFirewall } from '../../src/path/firewall/firewall.ts'
import { createIptables } from '../../src/path/firewall/iptables.ts'
import { createNftables } from '../../src/path/firewall/nftables.ts'
import { checkFirewall } from '../../src/tool/doctor/firewall.ts'
import { asIpv6 } from '../support/as-ipv6.ts'
import { countCalls } from '../support/calls.ts'
import { sound, soundDual } from '../support/facts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { kernelOf, type RemoteKernel } from '../support/remote-kernel.ts'

needs(HOSTS, 'iptables', 'nft', 'ping')

const net = (ipv4: string, ipv6?: string): Nets => ({
  ipv4: parseIpv4Net(ipv4)!,
  ipv6: ipv6 === undefined ? undefined : parseIpv6Net(ipv6)!,
})
const SUBNET = net('10.5.1.0/24')
/** Networks of both families. */
const NETWORKS = net('10.5.0.0/16', 'fd00:5::/48')
const SUBNETS = net('10.5.1.0/24', 'fd00:5:0:1::/64')
/** Returns the repairs; fails if a repair failed. */
async function ensured(firewall: Firewall, subnet = SUBNET): Promise<readonly string[]> {
  const { repaired, failures } = await firewall.ensure(subnet)
  expect(failures).toEqual([])
  return repaired
}
const log = { info: () => undefined, warn: () => undefined, error: () => undefined, v: () => false }
const common = {
  network: net('10.5.0.0/16'),
  masq: true,
  forward: true,
  previous: { network: {}, subnet: {} },
  plainPorts: false,
  log,
}

let namespace = ''
/** The kernel of the namespace, and the program through which the tests reach it. */
let kernel: RemoteKernel
let server: ChildProcess
/** Runs commands inside the namespace; `suffix` chooses iptables-legacy or iptables-nft. */
const inside =
  (suffix = ''): Run =>
  (file, args, options) => {
    const name = suffix ? file.replace(/^(ip6?tables)(?=$|-save|-restore)/, `$1-${suffix}`) : file
    return runHere('ip', ['netns', 'exec', namespace, name, ...args], options)
  }

beforeEach(async () => {
  namespace = `weft-fw-${process.pid}-${randomBytes(3).toString('hex')}`
  await runHere('ip', ['netns', 'add', namespace])
  ;({ kernel, server } = kernelOf(namespace))
})
afterEach(async () => {
  server.kill()
  await runHere('ip', ['netns', 'del', namespace])
})

/** Returns the results of `look`, which repeats while `work` repeats, both at least 20 times. */
async function seenDuring<T>(look: () => Promise<T>, work: () => Promise<unknown>): Promise<T[]> {
  const seen: T[] = []
  let works = 0
  const isEnough = (): boolean => works >= 20 && seen.length >= 20
  const looking = async (): Promise<void> => {
    while (!isEnough()) seen.push(await look())
  }
  const working = async (): Promise<void> => {
    for (; !isEnough(); works++) await work()
  }
  await Promise.all([looking(), working()])
  return seen
}

const GOLDEN = `-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.1.0/24 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`

/** Per family: the words for IPv4, the network, and the subnets 10.5.N.0/24 and their IPv6 counterparts. */
const FAMILIES = {
  ipv4: { of: (text: string) => text, network: net('10.5.0.0/16'), subnet: (n: number) => net(`10.5.${n}.0/24`) },
  ipv6: {
    of: asIpv6,
    network: { ipv6: NETWORKS.ipv6 },
    subnet: (n: number) => ({ ipv6: parseIpv6Net(`fd00:5:0:${n}::/64`)! }),
  },
} as const

/** Returns arguments for `skip`: whether this kind of iptables is missing, and the reason. */
const lacks = (kind: string): [boolean, string] => {
  const file = `/usr/sbin/iptables-${kind}`
  return [!existsSync(file), `no ${file}`]
}

describe.each(['nft', 'legacy'])('iptables of the kind %s', (kind) => {
  const rulesBy = async (run: Run, program: string, table: string) =>
    (await run(`${program}-save`, ['-t', table])).split('\n').filter((line) => line.startsWith('-A'))

  test.for(['ipv4', 'ipv6'] as const)(
    "of %s has flanneld's rules, after foreign ones, and repairs rules that were flushed, deleted or reordered",
    async (family, { skip }) => {
      skip(...lacks(kind))
      const { of, network, subnet } = FAMILIES[family]
      const program = of('iptables')
      const run = inside(kind)
      const rules = (table: string) => rulesBy(run, program, table)
      const repaired = of('FLANNEL-POSTRTG') + (family === 'ipv6' ? ' (IPv6)' : '')
      const golden = of(GOLDEN).split('\n')
      const options = { ...common, network, run, kernel }
      const look = (firewall: Firewall, n = 1) => ensured(firewall, subnet(n))
      await run(program, ['-t', 'nat', '-A', 'POSTROUTING', '-s', of('192.0.2.0/24'), '-j', 'ACCEPT'])
      const firewall = createIptables(options)
      expect(await look(firewall)).toEqual([])
      const foreign = of('-A POSTROUTING -s 192.0.2.0/24 -j ACCEPT')
      const jump = '-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG'
      expect(await rules('nat')).toEqual([foreign, jump, ...golden])
      expect(await rules('filter')).toEqual([
        '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD',
        of('-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT'),
        of('-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT'),
      ])
      expect(await look(firewall)).toEqual([])

      const [first = ''] = golden
      const breaks: readonly (readonly string[])[] = [
        ['-F', 'FLANNEL-POSTRTG'],
        ['-D', 'FLANNEL-POSTRTG', '6'],
        ['-F', 'POSTROUTING'],
        ['-A', 'POSTROUTING', '-j', 'FLANNEL-POSTRTG'],
        ['-A', 'FLANNEL-POSTRTG', '-j', 'RETURN'],
      ]
      for (const args of breaks) {
        await run(program, ['-t', 'nat', ...args])
        expect(await look(firewall), args.join(' ')).toEqual([`rules of ${repaired}`])
        expect((await rules('nat')).filter((line) => line !== foreign)).toEqual([jump, ...golden])
      }
      const reorder = `*nat\n-D${first.slice(2)}\n${first}\nCOMMIT\n`
      await run(`${program}-restore`, ['--noflush'], { input: reorder })
      expect(await look(firewall)).toEqual([`rules of ${repaired}`])

      expect(await look(firewall, 9)).toEqual([])
      expect(await rules('nat')).toContain(of(GOLDEN.split('\n')[1]!.replace('10.5.1.0', '10.5.9.0')))

      // A start moves the jump to the end again, as flanneld's does.
      await run(program, ['-t', 'nat', '-A', 'POSTROUTING', '-s', of('198.51.100.0/24'), '-j', 'ACCEPT'])
      await createIptables(options).raise(subnet(1))
      const order = (await rules('nat')).filter((line) => line.startsWith('-A POSTROUTING'))
      expect(order).toEqual([of('-A POSTROUTING -s 198.51.100.0/24 -j ACCEPT'), jump])

      // While the rules are set again, no reader sees an empty chain or a chain without a jump.
      const seen = await seenDuring(
        () => rules('nat'),
        () => look(createIptables(options)),
      )
      for (const lines of seen)
        expect(lines.filter((line) => line.includes('FLANNEL-POSTRTG'))).toEqual([jump, ...golden])

      await createNftables(options).raise(subnet(1))
      expect((await run(`${program}-save`, [])).includes('FLANNEL')).toBe(false)
      await createIptables(options).raise(subnet(1))
      expect(await run('nft', ['list', 'tables'])).not.toContain('flannel')
    },
  )

  test('of both families keeps foreign rules, follows the configuration, and leaves no rule of a disabled family', async ({
    skip,
  }) => {
    skip(...lacks(kind))
    const run = inside(kind)
    const options = { ...common, run, kernel, network: NETWORKS }
    const previous = { network: NETWORKS, subnet: SUBNETS }
    /** Rules of another daemon in the shared chains, and rules of an operator. */
    const others = ['-A FLANNEL-FWD -s 10.9.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT']
    const foreign = '-A FORWARD -s 192.0.2.0/24 -j DROP'
    const input = `*filter\n:FLANNEL-FWD - [0:0]\n${[...others, foreign].join('\n')}\nCOMMIT\n`
    await run('iptables-restore', ['--noflush'], { input })
    await run('ip6tables-restore', ['--noflush'], { input: asIpv6(input) })
    const before = [await rulesBy(run, 'iptables', 'filter'), await rulesBy(run, 'ip6tables', 'filter')]

    await createIptables(options).raise(SUBNETS)
    const all = async (program: string) => [
      ...(await rulesBy(run, program, 'nat')),
      ...(await rulesBy(run, program, 'filter')),
    ]
    /** The earlier rules, and the jump that the other daemon also needs. */
    const left = before.map((lines) =>
      ['-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD', ...lines].toSorted(),
    )
    const four = await all('iptables')
    expect(four).toEqual(expect.arrayContaining([...GOLDEN.split('\n'), ...others, foreign]))
    expect(await all('ip6tables')).toEqual(four.map(asIpv6))

    // After IPv6 is disabled all its rules are removed, and the IPv4 rules stay.
    await createIptables({ ...common, run, kernel, previous }).raise(SUBNET)
    expect(await all('iptables')).toEqual(four)
    expect((await all('ip6tables')).toSorted()).toEqual(left[1])

    await createIptables(options).raise(SUBNETS)
    await createNftables({ ...options, previous }).raise(SUBNETS)
    expect((await all('iptables')).toSorted()).toEqual(left[0])
    expect((await all('ip6tables')).toSorted()).toEqual(left[1])
  })
})

test('the rules of kube-proxy in nf_tables are not read when weftd checks its own', async ({ skip }) => {
  skip(...lacks('nft'))
  const chains = Array.from({ length: 500 }, (_, at) => `KUBE-SVC-${at}`)
  const input = `*nat\n${chains.map((chain) => `:${chain} - [0:0]\n-A ${chain} -d 10.96.0.1 -p tcp -j RETURN\n`).join('')}COMMIT\n`
  const run = inside('nft')
  await run('iptables-restore', ['--noflush'], { input })
  let read = 0
  const counting: Run = async (file, args, options) => {
    const text = await run(file, args, options)
    read += text.length
    return text
  }
  const firewall = createIptables({ ...common, run: counting, kernel })
  await firewall.raise(SUBNET)
  expect(await ensured(firewall)).toEqual([])
  await run('iptables', ['-t', 'nat', '-F', 'FLANNEL-POSTRTG'])
  expect(await ensured(firewall)).toEqual(['rules of FLANNEL-POSTRTG'])
  expect(read).toBeLessThan(input.length / 2)
  expect(await run('iptables-save', ['-t', 'nat'])).toContain(':KUBE-SVC-499 ')
})

/** The output of flanneld's nftables mode (its e2e test, expectedNftPostrouting), without the fourth rule of postrtg. */
const NFT_TABLE = `table ip flannel-ipv4 {
	comment "rules for flannel-ipv4"
	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x00004000 return
		ip saddr 10.5.1.0/24 ip daddr 10.5.0.0/16 return
		ip saddr 10.5.0.0/16 ip daddr 10.5.1.0/24 return
		ip saddr != 10.5.0.0/16 ip daddr 10.5.1.0/24 return
		ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 masquerade fully-random
	}

	chain forward {
		comment "chain to accept flannel traffic"
		type filter hook forward priority filter; policy accept;
		ip saddr 10.5.0.0/16 accept
		ip daddr 10.5.0.0/16 accept
	}
}
`
const NFT_EMPTY = `table ip flannel-ipv4 {
	comment "rules for flannel-ipv4"
}
`

test.each([
  ['IPv4', common.network, SUBNET, NFT_TABLE, asIpv6(NFT_EMPTY), ['the table flannel-ipv4']],
  ['IPv6', FAMILIES.ipv6.network, FAMILIES.ipv6.subnet(1), asIpv6(NFT_TABLE), NFT_EMPTY, ['the table flannel-ipv6']],
  [
    'both families',
    NETWORKS,
    SUBNETS,
    NFT_TABLE,
    asIpv6(NFT_TABLE),
    ['the table flannel-ipv4', 'the table flannel-ipv6'],
  ],
] as const)(
  "nft has flanneld's two tables for %s, and they come back after the ruleset was flushed",
  async (_, network, subnet, first, second, repaired) => {
    const run = inside()
    const options = { ...common, network, run, kernel }
    const firewall = createNftables(options)
    expect(await ensured(firewall, subnet)).toEqual([])
    const list = () => run('nft', ['-s', 'list', 'ruleset'])
    expect(await list()).toBe(first + second)
    expect(await ensured(firewall, subnet)).toEqual([])
    await run('nft', ['flush', 'ruleset'])
    expect(await ensured(firewall, subnet)).toEqual(repaired)
    expect(await list()).toBe(first + second)

    // nft does not list two tables atomically: it may show one before and one after a transaction.
    if (repaired.length > 1) return
    const seen = await seenDuring(list, () => ensured(createNftables(options), subnet))
    expect(new Set(seen)).toEqual(new Set([first + second]))
  },
)

test('nft empties the table of a family that is disabled, except for the rules of another daemon', async () => {
  const run = inside()
  const previous = { network: NETWORKS, subnet: SUBNETS }
  const other = { network: net('10.9.0.0/16', 'fd00:9::/48'), subnet: net('10.9.1.0/24', 'fd00:9:0:1::/64') }
  await createNftables({ ...common, network: NETWORKS, run, kernel }).raise(SUBNETS)
  await createNftables({ ...common, network: other.network, run, kernel }).raise(other.subnet)
  await createNftables({ ...common, previous, run, kernel }).raise(SUBNET)
  const [four, six] = await Promise.all(
    ['ip flannel-ipv4', 'ip6 flannel-ipv6'].map((table) => run('nft', ['-s', 'list', 'table', ...table.split(' ')])),
  )
  expect(four).toMatch(/10\.5\.1\.0[^]*10\.9\.1\.0/)
  expect(six).toContain('ip6 daddr fd00:9::/48 accept')
  expect(six).not.toContain('fd00:5:')
})

test.each([
  ['iptables of the kind nft', 'nft', createIptables, ['ip6tables', '-F', 'FLANNEL-FWD']],
  ['iptables of the kind legacy', 'legacy', createIptables, ['ip6tables', '-F', 'FLANNEL-FWD']],
  ['nft', '', createNftables, ['nft', 'delete', 'table', 'ip6', 'flannel-ipv6']],
] as const)('by %s the doctor finds the rules of both families, and names the one that has none', async (...it) => {
  const [, kind, create, breaks] = it
  const run = inside(kind)
  await create({ ...common, network: NETWORKS, run, kernel }).raise(SUBNETS)
  const found = async () => {
    const [iptables, ip6tables, nft] = await Promise.all([
      run('iptables', ['-S']),
      run('ip6tables', ['-S']),
      run('nft', ['list', 'ruleset']),
    ])
    return checkFirewall({ ...sound, ...soundDual, iptables, ip6tables, nft })
  }
  expect(await found()).toEqual([])
  const [program, ...args] = breaks
  await run(program, args)
  expect(await found()).toEqual([{ name: 'rules-missing', detail: 'IPv6' }])
  await run('ip6tables', ['-P', 'FORWARD', 'DROP'])
  expect(await found()).toEqual([
    {
      name: 'forward-dropped',
      detail: 'ip6tables: -P FORWARD DROP',
      fix: expect.stringContaining('`ip6tables -I FORWARD -s fd00:5::/48 -j ACCEPT`'),
    },
    { name: 'rules-missing', detail: 'IPv6' },
  ])
})

test('the blackhole route of each family has the lowest priority, so a later bridge still reaches its containers', async () => {
  const run = inside('nft')
  const ip = (args: string) => run('ip', args.split(' '))
  const options = {
    ...common,
    network: NETWORKS,
    masq: false,
    forward: false,
    blackhole: true,
    run,
    kernel,
  }
  const firewall = createFirewall('iptables', options)
  // Earlier routes: one for the previous subnet, which is removed, and one of another program.
  await ip('-6 route add blackhole fd00:5:0:7::/64 metric 4294967295')
  await ip('-6 route add blackhole fd00:5:0:8::/64')
  await firewall.raise(SUBNETS)
  const blackholes = async () => (await ip('-6 route show type blackhole')).split('\n').map((line) => line.trim())
  expect(await blackholes()).toEqual([
    expect.stringMatching(/^blackhole fd00:5:0:1::\/64 dev lo metric 4294967295/),
    expect.stringMatching(/^blackhole fd00:5:0:8::\/64 dev lo metric 1024/),
    '',
  ])
  await expect(ip('-6 route get fd00:5:0:1::99')).rejects.toThrow(/Invalid argument/)
  expect(await ensured(firewall, SUBNETS)).toEqual([])
  await ip('link add cni0 type bridge')
  await ip('link set cni0 up')
  await ip('-6 address add fd00:5:0:1::1/64 dev cni0 nodad')
  expect(await ip('-6 route get fd00:5:0:1::99')).toContain(' dev cni0 ')
  await ip('-6 address del fd00:5:0:1::1/64 dev cni0')
  // A route that an operator adds, with the usual metric.
  await ip('-6 route add fd00:5:0:1::/64 dev cni0')
  expect(await ip('-6 route get fd00:5:0:1::99')).toContain(' dev cni0 ')
  await ip('-6 route del blackhole fd00:5:0:1::/64 metric 4294967295')
  expect(await ensured(firewall, SUBNETS)).toEqual(['the blackhole route of fd00:5:0:1::/64 was gone'])
  expect(await ip('-4 route show type blackhole')).toContain('10.5.1.0/24 metric 4294967295')
})

/** In one table an accept overrides a DROP rule of iptables. An accept in a separate nft table does not. */
test.each([
  ['iptables', 'ipv4', createIptables, ['iptables', '-P', 'FORWARD', 'DROP']],
  ['nft', 'ipv4', createNftables, []],
  ['iptables', 'ipv6', createIptables, ['ip6tables', '-P', 'FORWARD', 'DROP']],
  ['nft', 'ipv6', createNftables, []],
] as const)(
  '%s of %s masquerades a container to the outside, not to another one, and the host to those of other hosts',
  async (_mode, family, create, before) => {
    const host = inside()
    const { of, network, subnet } = FAMILIES[family]
    const iptables = of('iptables')
    const isSix = family === 'ipv6'
    const names = { pod: `${namespace}-p`, out: `${namespace}-o`, far: `${namespace}-f` }
    const ip = (args: string) => runHere('ip', args.split(' '))
    const at = (address: string) => (isSix ? `${of(address)}/64 nodad` : `${address}/24`)
    try {
      for (const [link, name, hosts, theirs] of [
        ['pod', names.pod, '10.5.1.1', '10.5.1.2'],
        ['out', names.out, '198.51.100.1', '198.51.100.2'],
        ['far', names.far, '10.5.2.1', '10.5.2.2'],
      ] as const) {
        await ip(`netns add ${name}`)
        await ip(`-n ${namespace} link add ${link} type veth peer name eth0 netns ${name}`)
        await ip(`-n ${namespace} address add ${at(hosts)} dev ${link}`)
        await ip(`-n ${namespace} link set ${link} up`)
        await ip(`-n ${name} address add ${at(theirs)} dev eth0`)
        await ip(`-n ${name} link set eth0 up`)
      }
      await ip(`-n ${names.pod} route add default via ${of('10.5.1.1')}`)
      await ip(`-n ${names.far} route add default via ${of('10.5.2.1')}`)
      await host('sysctl', ['-qw', isSix ? 'net.ipv6.conf.all.forwarding=1' : 'net.ipv4.ip_forward=1'])
      const [program, ...args] = before
      if (program) await host(program, args)
      // The containers refuse packets from the address of their own host, which is the source of masqueraded packets.
      const requests = isSix ? '-p ipv6-icmp --icmpv6-type echo-request' : '-p icmp --icmp-type echo-request'
      await ip(`netns exec ${names.far} ${iptables} -A INPUT ${requests} -s ${of('10.5.2.1')} -j DROP`)
      await ip(`netns exec ${names.pod} ${iptables} -A INPUT ${requests} -s ${of('10.5.1.1')} -j DROP`)
      const ping = ['ping', '-c', '1', '-W', String(EVENT_MS / 1000)]
      const answered = (address: string) => output(['ip', 'netns', 'exec', names.pod, ...ping, of(address)])
      const byHost = ['ip', 'netns', 'exec', namespace, ...ping, '-I', of('198.51.100.1')]
      const answeredByHost = (address: string) => output([...byHost, of(address)])
      /** Returns the number of packets that a DROP rule in a container has matched. */
      const dropped = async (name: string) =>
        Number(/^ *(\d+) .* DROP /m.exec(await ip(`netns exec ${name} ${iptables} -nvL INPUT`))![1])
      /** Returns the number of echo requests that a container has received. A request without an answer stays unanswered. */
      const asked = async (name: string) =>
        isSix
          ? Number(/^Icmp6InEchos\s+(\d+)/m.exec(await ip(`netns exec ${name} cat /proc/net/snmp6`))![1])
          : Number(/^Icmp: (?:\d+ ){8}(\d+)/m.exec(await ip(`netns exec ${name} cat /proc/net/snmp`))![1])
      const unanswered = async (command: readonly string[], arrives: () => Promise<number>) => {
        const earlier = await arrives()
        const child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 'pipe', 'ignore'] })
        let said = ''
        child.stdout.on('data', (text: Buffer) => (said += text.toString()))
        await expect.poll(arrives).toBe(earlier + 1)
        child.kill('SIGINT') // tcpdump prints its packets and exits
        await ended(child)
        expect(said).toContain('1 packets transmitted, 0 received')
      }

      /** A policy of iptables drops the packet on the host; otherwise it reaches a place that never answers. */
      const gone = async () =>
        program ? Number(/policy DROP (\d+)/.exec(await host(iptables, ['-nvL', 'FORWARD']))![1]) : asked(names.out)
      await unanswered(['ip', 'netns', 'exec', names.pod, ...ping, of('198.51.100.2')], gone)
      await answeredByHost('10.5.2.2')
      await ensured(create({ ...common, network, run: host, kernel }), subnet(1))
      // The outside has no route to the network, so only a masqueraded packet is answered.
      await answered('198.51.100.2')
      await answered('10.5.2.2')
      await unanswered([...byHost, of('10.5.2.2')], () => dropped(names.far))
      await answeredByHost('10.5.1.2')
    } finally {
      for (const name of Object.values(names)) await ip(`netns del ${name}`).catch(() => '')
    }
  },
)

test('weftd waits for the lock of iptables-legacy', async ({ skip }) => {
  skip(...lacks('legacy'))
  const lock = `/tmp/${namespace}.lock`
  process.env['XTABLES_LOCKFILE'] = lock
  const holder = spawn('flock', [lock, 'sh', '-c', 'echo held; cat'], { stdio: ['pipe', 'pipe', 'ignore'] })
  try {
    await new Promise((resolve) => holder.stdout.once('data', resolve))
    const run = inside('legacy')
    let done = false
    const ensuring = ensured(createIptables({ ...common, run, kernel }))
    const settled = ensuring.finally(() => (done = true))
    // In proc_locks(5) a waiting process has an arrow, and the inode is at the end of the fifth column.
    const waits = new RegExp(`-> FLOCK .*:${statSync(lock).ino} `)
    await expect.poll(() => waits.test(readFileSync('/proc/locks', 'utf8'))).toBe(true)
    expect(done).toBe(false)
    holder.stdin.end()
    await settled
    expect(await run('iptables-save', ['-t', 'nat'])).toContain('-j FLANNEL-POSTRTG')
  } finally {
    delete process.env['XTABLES_LOCKFILE']
    holder.kill()
    execFileSync('rm', ['-f', lock])
  }
})

describe('weftd', () => {
  let lab: Lab
  let host: Host
  beforeEach(async () => {
    lab = await createLab({ hosts: 2 })
    host = lab.hosts[0]!
  })
  afterEach(() => lab.close())

  async function start(
    config: object,
    options: { on?: Host; args?: string[]; env?: Record<string, string>; before?: string[] } = {},
  ) {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases, { recursive: true })
    writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...config }))
    const args = ['--lease-dir', leases, '--iptables-resync=1', ...(options.args ?? ['--ip-masq'])]
    const daemon = (options.on ?? host).startDaemon({ ...options, args })
    await daemon.line(/flannel is ready/)
    return daemon
  }
  /** Returns the rules without counters and dates. */
  const rules = async (...command: string[]): Promise<string> =>
    (await host.output(command)).replaceAll(/^#.*\n/gm, '').replaceAll(/\[\d+:\d+\]/g, '')
  const lines = (daemon: Daemon, text: string): number => daemon.lines.filter((line) => line.includes(text)).length

  /** Breaks the rules with `command`, and waits until they are restored and the log says so. */
  async function repairsAfter(
    daemon: Daemon,
    list: readonly string[],
    repaired: string,
    command: readonly string[],
    input = '',
  ) {
    const before = await rules(...list)
    const times = lines(daemon, repaired)
    await host.output(command, { input })
    await expect.poll(() => lines(daemon, repaired)).toBe(times + 1)
    await expect.poll(() => rules(...list)).toBe(before) // other chains too, each with a log line of its own
  }

  test('repairs rules that were deleted, flushed or swapped, logs and counts it', async () => {
    const daemon = await start({})
    const list = ['iptables-save']
    const first = (await rules(...list)).split('\n').find((line) => line.startsWith('-A FLANNEL-POSTRTG '))!
    const repaired = 'Repaired: rules of FLANNEL-POSTRTG'
    await repairsAfter(daemon, list, repaired, ['iptables', '-t', 'nat', '-D', 'FLANNEL-POSTRTG', '6'])
    await repairsAfter(daemon, list, repaired, ['iptables', '-t', 'nat', '-F', 'POSTROUTING'])
    const second = first.replace('-A FLANNEL-POSTRTG', '-I FLANNEL-POSTRTG 2')
    const swap = `*nat\n-D${first.slice(2)}\n${second}\nCOMMIT\n`
    await repairsAfter(daemon, list, repaired, ['iptables-restore', '--noflush'], swap)
    await repairsAfter(daemon, list, 'Repaired: rules of FLANNEL-FWD', ['iptables', '-D', 'FORWARD', '1'])
    expect(lines(daemon, 'Some iptables rules are missing; deleting and recreating rules')).toBe(4)
    // Two repairs in one check are the fifth and the sixth. The seventh is the last one that is logged in a minute.
    await repairsAfter(daemon, list, 'Repaired: rules of FLANNEL-FWD', ['nft', 'flush', 'ruleset'])
    await expect.poll(() => lines(daemon, repaired)).toBe(4)
    await repairsAfter(daemon, list, repaired, ['iptables', '-t', 'nat', '-F', 'FLANNEL-POSTRTG'])
    expect(daemon.lines.filter((line) => /That is 7 repairs in a minute|repair 7 since/.test(line))).toHaveLength(1)
    expect(daemon.lines.filter((line) => /^[EF]/.test(line))).toEqual([])
    expect(await daemon.stop()).toBe(0)
  })

  test.each([
    ['iptables', {}, ['iptables-save'], /-j MASQUERADE( --random-fully)?$/gm, '-A FLANNEL-FWD -s'],
    [
      'nft',
      { EnableNFTables: true },
      ['nft', 'list', 'ruleset'],
      /masquerade( fully-random)?$/gm,
      'type filter hook forward',
    ],
  ] as const)('%s: each flag has its rules', async (_mode, config, list, masquerade, forward) => {
    const seen = async (args: string[]): Promise<[number, boolean, boolean]> => {
      const daemon = await start(config, { args })
      const text = await rules(...list)
      expect(await daemon.stop()).toBe(0)
      const random = [...text.matchAll(masquerade)].map((match) => match[1] !== undefined)
      return [random.length, random.includes(true), text.includes(forward)]
    }
    expect(await seen(['--ip-masq', '--iptables-forward-rules=false'])).toEqual([2, true, false])
    expect(await seen(['--ip-masq', '--ip-masq-fully-random-disable'])).toEqual([2, false, true])
    expect(await seen([])).toEqual([0, false, true])
  })

  test('checks the rules no more often than --iptables-resync says', async () => {
    const calls = lab.hosts.map((each) => countCalls(lab, 'iptables-save', each.name))
    const daemon = await start({}, { args: ['--iptables-resync=3600'], env: calls[0]!.env })
    const other = await start({}, { on: lab.hosts[1]!, args: ['--iptables-resync=1'], env: calls[1]!.env })
    const atStart = calls.map(({ seen }) => seen().length)
    await host.output(['iptables', '-F', 'FLANNEL-FWD'])
    /** Changes the generation of nftables, without which weftd does not list the rules. */
    const touch = (on: Host): Promise<string> => on.output(['nft', 'add table ip other; delete table ip other'])
    // subnet.env is checked every 5 s, like the rules by default: twice in the time that this takes.
    for (const number of [1, 2]) {
      rmSync(host.subnetFile)
      await daemon.line(new RegExp(`Repaired: .*subnet\\.env was gone or changed \\(repair ${number} `))
      await expect.poll(() => existsSync(host.subnetFile)).toBe(true)
      await touch(host)
      await touch(lab.hosts[1]!)
      await expect.poll(() => calls[1]!.seen().length - atStart[1]!).toBeGreaterThanOrEqual(number)
    }
    const looks = calls.map(({ seen }, index) => seen().length - atStart[index]!)
    console.log(`looks at the rules: ${looks.join(', ')}`)
    expect(looks[0]).toBe(0)
    expect(lines(daemon, 'Repaired: rules')).toBe(0)
    expect(lines(other, 'Repaired')).toBe(0)
    expect(await rules('iptables-save')).not.toContain('-A FLANNEL-FWD')
  })

  test.each([
    ['iptables-save', {}, ['iptables', '-F', 'FLANNEL-FWD'], 'Repaired: rules of FLANNEL-FWD'],
    ['nft', { EnableNFTables: true }, ['nft', 'flush', 'ruleset'], 'Repaired: the table flannel-ipv4'],
  ])('starts no program while no rule changes, and repairs a change: %s', async (program, config, flush, repaired) => {
    const calls = countCalls(lab, program)
    const daemon = await start(config, { args: ['--ip-masq', '--ip-blackhole-route'], env: calls.env })
    /** Waits for two checks. Each check also restores the blackhole route. The second check begins after the first. */
    const checks = async (): Promise<void> => {
      const gone = 'the blackhole route'
      for (const number of [1, 2].map((each) => each + lines(daemon, gone))) {
        await host.output(['ip', 'route', 'flush', 'type', 'blackhole'])
        await expect.poll(() => lines(daemon, gone)).toBe(number)
      }
    }
    await checks()
    const idle = calls.seen().length
    await checks()
    expect(calls.seen()).toHaveLength(idle)
    await host.output(flush)
    await expect.poll(() => lines(daemon, repaired)).toBe(1)
    await checks()
    expect(calls.seen().length).toBeGreaterThan(idle)
    expect(lines(daemon, repaired)).toBe(1)
  })

  test('repairs the table of the nftables mode', async () => {
    const daemon = await start({ EnableNFTables: true })
    const list = ['nft', '-s', 'list', 'ruleset']
    const repaired = 'Repaired: the table flannel-ipv4'
    await repairsAfter(daemon, list, repaired, ['nft', 'flush', 'ruleset'])
    await repairsAfter(daemon, list, repaired, ['nft', 'flush', 'chain', 'ip', 'flannel-ipv4', 'postrtg'])
    await repairsAfter(daemon, list, repaired, ['nft', 'insert', 'rule', 'ip', 'flannel-ipv4', 'postrtg', 'accept'])
  })

  test('keeps rules that others add to its table, without a repair each time', async () => {
    const daemon = await start({ EnableNFTables: true })
    const repairs = (): number => lines(daemon, 'Repaired: the table flannel-ipv4')
    const nft = (...args: string[]): Promise<string> => host.output(['nft', ...args])
    await nft('add', 'chain', 'ip', 'flannel-ipv4', 'theirs')
    await nft('add', 'rule', 'ip', 'flannel-ipv4', 'theirs', 'ip', 'saddr', '192.0.2.0/24', 'accept')
    const theirs = (): Promise<string> => nft('list', 'chain', 'ip', 'flannel-ipv4', 'theirs')
    const before = await theirs()
    for (const times of [1, 2]) {
      await nft('flush', 'chain', 'ip', 'flannel-ipv4', 'forward')
      await expect.poll(repairs).toBe(times)
    }
    expect(await theirs()).toBe(before)
  })

  /**
   * Returns a folder of programs without iptables, a function that adds iptables, and the arguments of a daemon with this folder. weftd
   * finds programs in /usr/sbin whatever PATH is, so an empty folder hides that one.
   */
  function binWithout(programs = ['ip', 'nft', 'setpriv']) {
    const bin = join(lab.folder, 'bin')
    mkdirSync(bin)
    const provide = (name: string): void =>
      copyFileSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(bin, name))
    for (const name of programs) provide(name)
    const before = ['/usr/bin/unshare', '--mount', '/bin/sh', '-c']
    const hiding = '/usr/bin/mount -t tmpfs none /usr/sbin && exec "$@"'
    return { bin, provide, options: { env: { PATH: bin }, before: [...before, hiding, 'sh'] } }
  }

  test("starts without iptables, logs flanneld's lines, and sets the rules once iptables appears", async () => {
    const { provide, options } = binWithout()
    const daemon = await start({}, options)
    const said = daemon.lines.filter((line) => line.startsWith('E'))
    expect(said).toHaveLength(2) // flanneld also has two: for masquerading and for forwarding
    for (const line of said)
      expect(line).toMatch(
        /\] Failed to setup IPTables\. iptables binary was not found: iptables is not installed; install the package iptables$/,
      )
    await daemon.line(/\] Failed to ensure iptables rules: iptables is not installed/)
    for (const name of ['iptables-save', 'iptables-restore', 'iptables']) provide(name)
    await expect.poll(() => rules('iptables-save')).toContain('-j FLANNEL-POSTRTG')
  })

  test('nft mode removes the rules of iptables mode without iptables, and names those of iptables-legacy, which it cannot remove', async ({
    skip,
  }) => {
    skip(...lacks('legacy'))
    const first = await start({})
    expect(await first.stop()).toBe(0)
    const left = await rules('iptables-nft-save')
    expect(left).toContain('-j FLANNEL-POSTRTG')
    const { options } = binWithout()
    const nft = await start({ EnableNFTables: true }, options)
    expect(await rules('iptables-nft-save')).not.toContain('FLANNEL')
    expect(lines(nft, 'may stay')).toBe(0)
    expect(await nft.stop()).toBe(0)

    await host.output(['iptables-legacy-restore', '--noflush'], { input: left })
    const again = await start({ EnableNFTables: true }, options)
    expect(again.lines.filter((line) => line.includes('may stay'))).toEqual([
      expect.stringMatching(
        /^W.*Rules that an iptables mode left may stay: the legacy kind of iptables has tables here/,
      ),
    ])
  })

  test('logs from -v 2 on that the tables of the nftables mode could not be removed', async () => {
    const { options } = binWithout(['ip', 'setpriv'])
    await host.output(['nft', 'add', 'table', 'ip', 'flannel-ipv4'])
    for (const level of [1, 2]) {
      const args = [`-v=${level}`, '--iptables-forward-rules=false']
      const daemon = await start({}, { ...options, args })
      expect(daemon.lines.filter((line) => line.includes('] nft is not installed'))).toHaveLength(level - 1)
      expect(await daemon.stop()).toBe(0)
    }
  })

  test("starts without br_netfilter with flanneld's line as a warning, but without the line if no rule needs it", async () => {
    const hidden = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs tmpfs /proc/sys/net/bridge && exec "$@"', 'sh']
    const warned = (daemon: Daemon): string[] => daemon.lines.filter((line) => line.includes('br_netfilter'))
    const daemon = await start({}, { before: hidden })
    expect(warned(daemon)).toEqual([
      expect.stringMatching(
        /^W.*\] Failed to check br_netfilter: stat \/proc\/sys\/net\/bridge\/bridge-nf-call-iptables: no such file or directory; .*modprobe br_netfilter/,
      ),
    ])
    expect(await daemon.stop()).toBe(0)
    const none = await start({}, { before: hidden, args: ['--iptables-forward-rules=false'] })
    expect(warned(none)).toEqual([])
    expect(await none.stop()).toBe(0)
    const nft = await start({ EnableNFTables: true }, { before: hidden })
    expect(warned(nft)).toEqual([])
  })

  test('removes at the start the rules of an older version and of other flags', async () => {
    const old = [
      '-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN',
      '-A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE',
      '-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.7.0/24 -j RETURN',
      '-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE',
    ]
    await host.output(['iptables-restore', '--noflush'], { input: `*nat\n${old.join('\n')}\nCOMMIT\n` })
    const masq = await start({})
    const [subnet, save] = [host.subnetEnv()['FLANNEL_SUBNET']!, await rules('iptables-save')]
    for (const rule of old) expect(save).not.toContain(rule)
    const net24 = subnet.replace(/\.1\/24$/, '.0/24')
    expect(masq.lines.filter((line) => line.includes('is not equal to previous one'))).toEqual([
      expect.stringContaining(
        `] Current network or subnet (10.5.0.0/16, ${net24}) is not equal to previous one (0.0.0.0/0, 0.0.0.0/0), ` +
          'trying to recycle old iptables rules',
      ),
    ])
    expect(await masq.stop()).toBe(0)
    expect(await rules('iptables-save')).toBe(save) // the rules outlive the daemon, like those of flanneld
    const none = await start({}, { args: ['--iptables-forward-rules=false'] })
    expect(await rules('iptables-save')).not.toMatch(/flannel/i)
    expect(await none.stop()).toBe(0)
    const nft = await start({ EnableNFTables: true })
    expect(await nft.stop()).toBe(0)
    await start({}, { args: [] })
    expect(await rules('nft', 'list', 'tables')).not.toContain('flannel')
    expect(await rules('iptables-save')).toContain('-j FLANNEL-FWD')
  })
})
