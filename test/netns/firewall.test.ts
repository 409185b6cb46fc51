// firewall.test.ts - the rules with real iptables, of both kinds, and real nft, in a namespace of the test.

import { execFileSync, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { ended, output } from '../../lab/command.ts'
import { createLab, EVENT_MS, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { createIptables, createNftables } from '../../src/firewall/firewall.ts'
import { isNfTables } from '../../src/host/iptables.ts'
import { run as runHere, type Run } from '../../src/host/command.ts'
import { parseIpv4Net, type Ipv4Net } from '../../src/net/ipv4.ts'
import { countCalls } from '../support/calls.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'iptables', 'nft', 'ping')

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

/** What `look` returns again and again while `work` is done again and again, both at least 20 times. */
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

/** Why a test of this kind of iptables cannot be run, if so, for `skip`. */
const lacks = (kind: string): [boolean, string] => {
  const file = `/usr/sbin/iptables-${kind}`
  return [!existsSync(file), `no ${file}`]
}

describe.each(['nft', 'legacy'])('iptables-%s', (kind) => {
  const rules = async (run: Run, table: string) =>
    (await run('iptables-save', ['-t', table])).split('\n').filter((line) => line.startsWith('-A'))

  test("has flanneld's rules, after those of others, and mends what was flushed, deleted or reordered", async ({
    skip,
  }) => {
    skip(...lacks(kind))
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

    // A start moves the jump to the end again, as flanneld's.
    await run('iptables', ['-t', 'nat', '-A', 'POSTROUTING', '-s', '198.51.100.0/24', '-j', 'ACCEPT'])
    await createIptables({ ...common, run }).raise(SUBNET)
    const order = (await rules(run, 'nat')).filter((line) => line.startsWith('-A POSTROUTING'))
    expect(order).toEqual(['-A POSTROUTING -s 198.51.100.0/24 -j ACCEPT', jump])

    // While they are set again and again nobody sees a chain that is empty or that nothing jumps to.
    const seen = await seenDuring(
      () => rules(run, 'nat'),
      () => createIptables({ ...common, run }).ensure(SUBNET),
    )
    for (const lines of seen)
      expect(lines.filter((line) => line.includes('FLANNEL-POSTRTG'))).toEqual([jump, ...GOLDEN.split('\n')])

    await createNftables({ ...common, run }).raise(SUBNET)
    expect((await run('iptables-save', [])).includes('FLANNEL')).toBe(false)
    await createIptables({ ...common, run }).raise(SUBNET)
    expect(await run('nft', ['list', 'tables'])).not.toContain('flannel')
  })
})

test('what kube-proxy has in the tables of nf_tables is not read to look after our own', async ({ skip }) => {
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
  const firewall = createIptables({ ...common, run: counting })
  await firewall.raise(SUBNET)
  expect(await firewall.ensure(SUBNET)).toEqual([])
  await run('iptables', ['-t', 'nat', '-F', 'FLANNEL-POSTRTG'])
  expect(await firewall.ensure(SUBNET)).toEqual(['rules of FLANNEL-POSTRTG'])
  expect(read).toBeLessThan(input.length / 2)
  expect(await run('iptables-save', ['-t', 'nat'])).toContain(':KUBE-SVC-499 ')
})

/** What flanneld's nftables mode shows (its e2e test, expectedNftPostrouting), but for the fourth rule of postrtg. */
const NFT_GOLDEN = `table ip flannel-ipv4 {
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
table ip6 flannel-ipv6 {
	comment "rules for flannel-ipv6"
}
`

test("nft has flanneld's two tables, and they come back after the ruleset was flushed", async () => {
  const run = inside()
  const firewall = createNftables({ ...common, run })
  expect(await firewall.ensure(SUBNET)).toEqual([])
  const list = () => run('nft', ['-s', 'list', 'ruleset'])
  expect(await list()).toBe(NFT_GOLDEN)
  expect(await firewall.ensure(SUBNET)).toEqual([])
  await run('nft', ['flush', 'ruleset'])
  expect(await firewall.ensure(SUBNET)).toEqual(['the table flannel-ipv4'])
  expect(await list()).toBe(NFT_GOLDEN)

  const seen = await seenDuring(list, () => createNftables({ ...common, run }).ensure(SUBNET))
  expect(new Set(seen)).toEqual(new Set([NFT_GOLDEN]))
})

/** A DROP of iptables is overruled by an accept in the same table, never by one in a table of nft's own. */
test.each([
  ['iptables', createIptables, ['iptables', '-P', 'FORWARD', 'DROP']],
  ['nft', createNftables, []],
] as const)(
  '%s masquerades a container to the outside, not to another one, and the host to those of other hosts',
  async (_mode, create, before) => {
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
      const [program, ...args] = before
      if (program) await host(program, args)
      // The containers refuse what comes from the host's address beside them, as a masqueraded packet seems to.
      await ip(`netns exec ${names.far} iptables -A INPUT -s 10.5.2.1 -j DROP`)
      await ip(`netns exec ${names.pod} iptables -A INPUT -s 10.5.1.1 -j DROP`)
      const ping = ['ping', '-c', '1', '-W', String(EVENT_MS / 1000)]
      const answered = (address: string) => output(['ip', 'netns', 'exec', names.pod, ...ping, address])
      const byHost = ['ip', 'netns', 'exec', namespace, ...ping, '-I', '198.51.100.1']
      const answeredByHost = (address: string) => output([...byHost, address])
      /** How many packets a rule that drops them has met, in a container. */
      const dropped = async (name: string) =>
        Number(/^ *(\d+) .* DROP /m.exec(await ip(`netns exec ${name} iptables -nvL INPUT`))![1])
      /** How many echo requests have come to a container; one that came and was not answered never will be. */
      const asked = async (name: string) =>
        Number(/^Icmp: (?:\d+ ){8}(\d+)/m.exec(await ip(`netns exec ${name} cat /proc/net/snmp`))![1])
      const unanswered = async (command: readonly string[], arrives: () => Promise<number>) => {
        const earlier = await arrives()
        const child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 'pipe', 'ignore'] })
        let said = ''
        child.stdout.on('data', (text: Buffer) => (said += text.toString()))
        await expect.poll(arrives).toBe(earlier + 1)
        child.kill('SIGINT') // prints what it knows, and ends
        await ended(child)
        expect(said).toContain('1 packets transmitted, 0 received')
      }

      /** A policy of iptables drops it on the host; else it comes to where no answer comes from. */
      const gone = async () =>
        program ? Number(/policy DROP (\d+)/.exec(await host('iptables', ['-nvL', 'FORWARD']))![1]) : asked(names.out)
      await unanswered(['ip', 'netns', 'exec', names.pod, ...ping, '198.51.100.2'], gone)
      await answeredByHost('10.5.2.2')
      await create({ ...common, run: host }).ensure(SUBNET)
      // The outside knows no way to 10.5.0.0/16: only a masqueraded packet is answered.
      await answered('198.51.100.2')
      await answered('10.5.2.2')
      await unanswered([...byHost, '10.5.2.2'], () => dropped(names.far))
      await answeredByHost('10.5.1.2')
    } finally {
      for (const name of Object.values(names)) await ip(`netns del ${name}`).catch(() => '')
    }
  },
)

test('the lock of the legacy kind is waited for', async ({ skip }) => {
  skip(...lacks('legacy'))
  const lock = `/tmp/${namespace}.lock`
  process.env['XTABLES_LOCKFILE'] = lock
  const holder = spawn('flock', [lock, 'sh', '-c', 'echo held; cat'], { stdio: ['pipe', 'pipe', 'ignore'] })
  try {
    await new Promise((resolve) => holder.stdout.once('data', resolve))
    const run = inside('legacy')
    let done = false
    const ensured = createIptables({ ...common, run }).ensure(SUBNET)
    const settled = ensured.finally(() => (done = true))
    // proc_locks(5): a waiter's line has an arrow, and its inode at the end of the fifth column.
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
  /** The rules, without counters and dates. */
  const rules = async (...command: string[]): Promise<string> =>
    (await host.output(command)).replaceAll(/^#.*\n/gm, '').replaceAll(/\[\d+:\d+\]/g, '')
  const lines = (daemon: Daemon, text: string): number => daemon.lines.filter((line) => line.includes(text)).length

  /** Breaks the rules by `command` and waits until they are as before and the log says so. */
  async function mends(
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
    expect(await rules(...list)).toBe(before)
  }

  test('mends what was deleted, flushed or swapped, logs it and counts it', async () => {
    const daemon = await start({})
    const list = ['iptables-save']
    const first = (await rules(...list)).split('\n').find((line) => line.startsWith('-A FLANNEL-POSTRTG '))!
    const repaired = 'Repaired: rules of FLANNEL-POSTRTG'
    await mends(daemon, list, repaired, ['iptables', '-t', 'nat', '-D', 'FLANNEL-POSTRTG', '6'])
    await mends(daemon, list, repaired, ['iptables', '-t', 'nat', '-F', 'POSTROUTING'])
    const second = first.replace('-A FLANNEL-POSTRTG', '-I FLANNEL-POSTRTG 2')
    const swap = `*nat\n-D${first.slice(2)}\n${second}\nCOMMIT\n`
    await mends(daemon, list, repaired, ['iptables-restore', '--noflush'], swap)
    await mends(daemon, list, 'Repaired: rules of FLANNEL-FWD', ['iptables', '-D', 'FORWARD', '1'])
    expect(lines(daemon, 'Some iptables rules are missing; deleting and recreating rules')).toBe(4)
    // Two repairs at once, the fifth and the sixth; the seventh is the last that is told in a minute.
    await mends(daemon, list, 'Repaired: rules of FLANNEL-FWD', ['nft', 'flush', 'ruleset'])
    await mends(daemon, list, repaired, ['iptables', '-t', 'nat', '-F', 'FLANNEL-POSTRTG'])
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

  test('looks at the rules no sooner than --iptables-resync says', async () => {
    // Of either kind: of nf_tables chains are looked at one by one.
    const [program, ofLook]: readonly [string, RegExp] = isNfTables(await host.output(['iptables', '--version']))
      ? ['iptables', /^-t filter -S FLANNEL-FWD$/]
      : ['iptables-save', /^/]
    const counted = lab.hosts.map((each) => countCalls(lab, program, each.name))
    const calls = counted.map(({ env, seen }) => ({ env, seen: () => seen().filter((args) => ofLook.test(args)) }))
    const daemon = await start({}, { args: ['--iptables-resync=3600'], env: calls[0]!.env })
    const other = await start({}, { on: lab.hosts[1]!, args: ['--iptables-resync=1'], env: calls[1]!.env })
    const atStart = calls.map(({ seen }) => seen().length)
    await host.output(['iptables', '-F', 'FLANNEL-FWD'])
    // subnet.env is looked at every 5 s, as often as rules when nothing is said: twice in the time that this takes.
    for (const number of [1, 2]) {
      rmSync(host.subnetFile)
      await daemon.line(new RegExp(`Repaired: .*subnet\\.env was gone or changed \\(repair ${number} `))
      await expect.poll(() => existsSync(host.subnetFile)).toBe(true)
    }
    const looks = calls.map(({ seen }, index) => seen().length - atStart[index]!)
    console.log(`looks at the rules: ${looks.join(', ')}`)
    expect(looks[0]).toBe(0)
    expect(looks[1]).toBeGreaterThan(2)
    expect(lines(daemon, 'Repaired: rules')).toBe(0)
    expect(lines(other, 'Repaired')).toBe(0)
    expect(await rules('iptables-save')).not.toContain('-A FLANNEL-FWD')
  })

  test('mends the table of the nftables mode', async () => {
    const daemon = await start({ EnableNFTables: true })
    const list = ['nft', '-s', 'list', 'ruleset']
    const repaired = 'Repaired: the table flannel-ipv4'
    await mends(daemon, list, repaired, ['nft', 'flush', 'ruleset'])
    await mends(daemon, list, repaired, ['nft', 'flush', 'chain', 'ip', 'flannel-ipv4', 'postrtg'])
    await mends(daemon, list, repaired, ['nft', 'insert', 'rule', 'ip', 'flannel-ipv4', 'postrtg', 'accept'])
  })

  test('leaves what others put into its table where it is, and is not busy with it', async () => {
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

  /** A folder of programs that lacks iptables, and a way to bring it there. */
  function binWithout(programs = ['ip', 'nft', 'setpriv']) {
    const bin = join(lab.folder, 'bin')
    mkdirSync(bin)
    const provide = (name: string): void =>
      symlinkSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(bin, name))
    for (const name of programs) provide(name)
    return { bin, provide }
  }

  test("starts without iptables, with flanneld's words, and sets the rules up once it is there", async () => {
    const { bin, provide } = binWithout()
    const daemon = await start({}, { env: { PATH: bin } })
    const said = daemon.lines.filter((line) => line.startsWith('E'))
    expect(said).toHaveLength(2) // as flanneld: for masquerading, and for forwarding
    for (const line of said)
      expect(line).toMatch(
        /\] Failed to setup IPTables\. iptables binary was not found: iptables is not installed; install the package iptables$/,
      )
    await daemon.line(/\] Failed to ensure iptables rules: iptables is not installed/)
    for (const name of ['iptables-save', 'iptables-restore', 'iptables']) provide(name)
    await expect.poll(() => rules('iptables-save')).toContain('-j FLANNEL-POSTRTG')
  })

  test("nft mode needs no iptables to remove iptables mode's rules, and names those of the legacy kind, which it cannot", async ({
    skip,
  }) => {
    skip(...lacks('legacy'))
    const first = await start({})
    expect(await first.stop()).toBe(0)
    const left = await rules('iptables-nft-save')
    expect(left).toContain('-j FLANNEL-POSTRTG')
    const env = { PATH: binWithout().bin }
    const nft = await start({ EnableNFTables: true }, { env })
    expect(await rules('iptables-nft-save')).not.toContain('FLANNEL')
    expect(lines(nft, 'may stay')).toBe(0)
    expect(await nft.stop()).toBe(0)

    await host.output(['iptables-legacy-restore', '--noflush'], { input: left })
    const again = await start({ EnableNFTables: true }, { env })
    expect(again.lines.filter((line) => line.includes('may stay'))).toEqual([
      expect.stringMatching(
        /^W.*Rules that an iptables mode left may stay: the legacy kind of iptables has tables here/,
      ),
    ])
  })

  test("says from -v 2 on that the nftables mode's tables could not be removed", async () => {
    const { bin } = binWithout(['ip', 'setpriv'])
    for (const level of [1, 2]) {
      const args = [`-v=${level}`, '--iptables-forward-rules=false']
      const daemon = await start({}, { args, env: { PATH: bin } })
      expect(daemon.lines.filter((line) => line.includes('] nft is not installed'))).toHaveLength(level - 1)
      expect(await daemon.stop()).toBe(0)
    }
  })

  test("starts without br_netfilter, with flanneld's words as a warning; not so where no rule needs it", async () => {
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

  test('removes at the start what an older version and other flags left', async () => {
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
    expect(await rules('iptables-save')).toBe(save) // as flanneld's, they outlive it
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
