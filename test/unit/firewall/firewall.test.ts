// firewall.test.ts - what is asked of iptables and nft, what is logged in flanneld's words, and what ends the start.

import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/errors.ts'
import { createFirewall, createIptables, createNftables, type FirewallOptions } from '../../../src/firewall/firewall.ts'
import type { Run } from '../../../src/host/command.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'

const NETWORK = parseIpv4Net('10.42.0.0/16')!
const SUBNET = parseIpv4Net('10.42.7.0/24')!

interface Call {
  readonly file: string
  readonly args: readonly string[]
  readonly input: string
  readonly patient: boolean | undefined
}

/** A host where commands print `answers`, by program and arguments or by program alone; an Error is thrown. */
function fakeHost(given: Readonly<Record<string, string | Error>>, verbosity = 0) {
  const answers: Record<string, string | Error> = { ...given }
  const calls: Call[] = []
  const lines: string[] = []
  let set = ''
  /** What each table was set to last. */
  const tables = new Map<string, string>()
  const run: Run = async (file, args, options) => {
    const input = options?.input ?? ''
    calls.push({ file, args, input, patient: options?.patient })
    const command = [file, ...args].join(' ')
    const [, table, chain] = /^iptables -t (\S+) -S (\S+)$/.exec(command) ?? []
    if (table !== undefined && chain !== undefined && answers[command] === undefined) return showChain(table, chain)
    const answer = answers[command] ?? answers[file]
    if (answer instanceof Error) throw answer
    if (answer === undefined) throw missing(file)
    // A listing of one table shows what was set last, unless the host is told to show something else.
    if (file.endsWith('-restore') || command === 'nft -f -') set = input
    if (file === 'iptables-restore') for (const [, name = ''] of input.matchAll(/^\*(\S+)$/gm)) tables.set(name, input)
    const isListing = command.startsWith('iptables-save -t') || command.startsWith('nft -s list table')
    return isListing ? (answers[command] === undefined ? set : answer) : answer
  }
  /** As iptables of the kind nf_tables, from what a listing of all would show. */
  function showChain(table: string, chain: string): string {
    const there = answers[`iptables-save -t ${table}`] ?? tables.get(table) ?? answers['iptables-save'] ?? ''
    if (there instanceof Error) throw there
    const [, ofTable = ''] = new RegExp(`^\\*${table}\\n([^*]*)`, 'm').exec(there) ?? []
    const rules = ofTable.split('\n').filter((line) => line.startsWith(`-A ${chain} `))
    const isBuiltIn = !chain.startsWith('FLANNEL')
    if (!isBuiltIn && !ofTable.includes(`:${chain} `))
      throw refused(`chain \`${chain}' in table \`${table}' is incompatible`)
    return [isBuiltIn ? `-P ${chain} ACCEPT` : `-N ${chain}`, ...rules, ''].join('\n')
  }
  const say = (letter: string) => (message: string) => void lines.push(`${letter} ${message}`)
  const log = { info: say('I'), warn: say('W'), error: say('E'), v: (level: number) => level <= verbosity }
  const options = (wish: Partial<FirewallOptions>): FirewallOptions => ({
    ...{ network: NETWORK, masq: true, forward: true, plainPorts: false, previous: {}, run, log },
    ...wish,
  })
  const inputs = (file: string): string[] => calls.filter((call) => call.file === file).map(({ input }) => input)
  return { answers, calls, lines, options, inputs }
}
const missing = (path: string): WeftError =>
  new WeftError('COMMAND', `${path} is not installed`, {
    remedy: 'install it',
    cause: Object.assign(new Error(path), { code: 'ENOENT', path }),
  })
const refused = (what: string): WeftError =>
  new WeftError('COMMAND', `\`x\` failed: ${what}`, { cause: Object.assign(new Error(what), { code: 1 }) })
/** As of a command that was killed since it took too long. */
const late = (): WeftError =>
  new WeftError('COMMAND', '`x` failed: no answer within 10 s', {
    cause: Object.assign(new Error('late'), { code: null, killed: true }),
  })
const MODERN = {
  'iptables --version': 'iptables v1.8.9 (nf_tables)\n',
  'iptables-save': '',
  'iptables-restore': '',
  nft: '',
}
/** The bridge check sees the machine that the test runs on. */
const texts = (lines: readonly string[]): string[] => lines.filter((line) => !line.includes('br_netfilter'))

describe('iptables', () => {
  it('logs what flanneld logs, in its order', async () => {
    const host = fakeHost(MODERN)
    await createIptables(host.options({})).raise(SUBNET)
    expect(texts(host.lines)).toEqual([
      'I Cleaning-up unused traffic manager rules',
      'I Cleaning-up nftables rules...',
      'I Starting flannel in iptables mode...',
      'I Current network or subnet (10.42.0.0/16, 10.42.7.0/24) is not equal to previous one (0.0.0.0/0, 0.0.0.0/0), ' +
        'trying to recycle old iptables rules',
      'I Setting up masking rules',
      'I bootstrap done',
      'I Changing default FORWARD chain policy to ACCEPT',
      'I bootstrap done',
    ])
    const again = fakeHost(MODERN)
    const previous = { network: NETWORK, subnet: SUBNET }
    const firewall = createIptables(again.options({ previous, forward: false }))
    await firewall.raise(SUBNET)
    expect(texts(again.lines).slice(3)).toEqual(['I Setting up masking rules', 'I bootstrap done'])
    again.answers['iptables-save -t nat'] = '*nat\nCOMMIT\n'
    await firewall.ensure(SUBNET)
    expect(texts(again.lines).slice(5)).toEqual([
      'I Some iptables rules are missing; deleting and recreating rules',
      'I bootstrap done',
    ])
  })

  it.each([
    ['iptables v1.8.9 (nf_tables)', false, true, true],
    ['iptables v1.8.9 (nf_tables)', true, true, false],
    ['iptables v1.6.1', false, false, false],
  ])(
    '%s, --ip-masq-fully-random-disable %s: waits %s, --random-fully %s',
    async (version, plainPorts, waits, random) => {
      const host = fakeHost({ ...MODERN, 'iptables --version': version })
      await createIptables(host.options({ plainPorts })).raise(SUBNET)
      const restores = host.calls.filter(({ file }) => file === 'iptables-restore')
      expect(restores.map(({ args }) => args.join(' '))).toEqual(
        Array(2).fill(waits ? '--noflush --wait' : '--noflush'),
      )
      expect(restores.map(({ patient }) => patient)).toEqual([true, true])
      expect(restores[0]!.input.includes(' -j MASQUERADE\n')).toBe(!random)
      expect(restores[0]!.input.includes(' -j MASQUERADE --random-fully\n')).toBe(random)
    },
  )

  it.each([
    [1, []],
    [2, ['I `x` failed: no such table']],
  ])("at -v %d says of nft's table that cannot be removed: %j", async (verbosity, said) => {
    const host = fakeHost({ ...MODERN, nft: refused('no such table') }, verbosity)
    await createIptables(host.options({ previous: { network: NETWORK, subnet: SUBNET } })).raise(SUBNET)
    expect(host.calls[0]).toMatchObject({
      file: 'nft',
      input: expect.stringContaining('delete table ip6 flannel-ipv6'),
    })
    expect(texts(host.lines)).toEqual([
      'I Cleaning-up unused traffic manager rules',
      'I Cleaning-up nftables rules...',
      ...said,
      'I Starting flannel in iptables mode...',
      'I Setting up masking rules',
      'I bootstrap done',
      'I Changing default FORWARD chain policy to ACCEPT',
      'I bootstrap done',
    ])
  })

  it("goes on when an earlier network's rules cannot be removed, and tries again", async () => {
    const host = fakeHost({ ...MODERN, 'iptables-restore': refused('busy') })
    const previous = { network: parseIpv4Net('10.7.0.0/16')!, subnet: undefined }
    const firewall = createIptables(host.options({ previous }))
    await firewall.raise(SUBNET)
    expect(texts(host.lines).at(-1)).toBe('E Failed to bootstrap IPTables: `x` failed: busy')
    const old = '-A POSTROUTING ! -s 10.7.0.0/16 -d 10.7.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE'
    Object.assign(host.answers, { 'iptables-restore': '', 'iptables-save': `*nat\n${old}\nCOMMIT\n` })
    await firewall.ensure(SUBNET)
    expect(host.inputs('iptables-restore').at(-2)).toContain(`\n${old.replace('-A', '-D')}\n`)
  })

  it('goes on without the binary, says so, and sets the rules up when it is there', async () => {
    const host = fakeHost({ nft: '' })
    const firewall = createIptables(host.options({}))
    await firewall.raise(SUBNET)
    expect(texts(host.lines).at(-1)).toBe(
      'E Failed to setup IPTables. iptables binary was not found: iptables is not installed; install it',
    )
    await expect(firewall.ensure(SUBNET)).rejects.toThrow('Failed to ensure iptables rules: iptables is not installed')
    Object.assign(host.answers, MODERN)
    expect(await firewall.ensure(SUBNET)).toEqual([])
    expect(host.inputs('iptables-restore')).toHaveLength(2)
  })

  it('names the one of its programs that is missing', async () => {
    const host = fakeHost({ ...MODERN, 'iptables-restore': missing('iptables-restore') })
    await createIptables(host.options({})).raise(SUBNET)
    expect(texts(host.lines).at(-1)).toContain('Failed to setup IPTables. iptables-restore binary was not found: ')
  })

  it('sets up forward rules where the kernel refuses masquerade', async () => {
    const host = fakeHost(MODERN)
    const { run, ...rest } = host.options({})
    const picky: Run = (file, args, options) =>
      options?.input?.startsWith('*nat') ? Promise.reject(refused('no nat')) : run(file, args, options)
    await createIptables({ ...rest, run: picky }).raise(SUBNET)
    expect(host.inputs('iptables-restore').map((input) => input.split('\n')[0])).toEqual(['*filter'])
    expect(texts(host.lines).slice(-3)).toEqual([
      'E Failed to bootstrap IPTables: `x` failed: no nat',
      'I Changing default FORWARD chain policy to ACCEPT',
      'I bootstrap done',
    ])
  })

  it('with both flags off removes what an earlier run left, once, and then asks nothing', async () => {
    const host = fakeHost({
      ...MODERN,
      'iptables-save':
        '*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\n' +
        '-A FLANNEL-POSTRTG -s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE\n' +
        'COMMIT\n*filter\n:FLANNEL-FWD - [0:0]\n-A FLANNEL-FWD -s 10.9.0.0/16 -j ACCEPT\nCOMMIT\n',
    })
    const firewall = createIptables(host.options({ masq: false, forward: false }))
    await firewall.raise(SUBNET)
    // The other chain is that of another daemon on this host, with another network.
    expect(host.inputs('iptables-restore')).toEqual([
      '*nat\n-D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\n' +
        '-F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n',
    ])
    const asked = host.calls.length
    expect(await firewall.ensure(SUBNET)).toEqual([])
    expect(host.calls).toHaveLength(asked)
    expect(texts(host.lines)).toHaveLength(3)
  })

  it('with both flags off needs no iptables', async () => {
    const host = fakeHost({ nft: '' })
    await createIptables(host.options({ masq: false, forward: false })).raise(SUBNET)
    expect(host.lines.filter((line) => !line.startsWith('I'))).toEqual([])
  })

  it('does not take for its own what another program left right after it', async () => {
    const host = fakeHost({ ...MODERN, 'iptables-save -t nat': '*nat\nCOMMIT\n' })
    const firewall = createIptables(host.options({ forward: false }))
    await firewall.raise(SUBNET)
    for (let times = 0; times < 2; times++) expect(await firewall.ensure(SUBNET)).toEqual(['rules of FLANNEL-POSTRTG'])
    expect(host.inputs('iptables-restore')).toHaveLength(3)
  })

  it.each(['iptables v1.8.9 (nf_tables)', 'iptables v1.8.9 (legacy)'])(
    '%s: writes nothing while nothing has changed, and all when rules stand in another order',
    async (version) => {
      const host = fakeHost({ ...MODERN, 'iptables --version': version })
      const firewall = createIptables(host.options({}))
      await firewall.raise(SUBNET)
      const set = host.inputs('iptables-restore')
      expect(set).toHaveLength(2)
      host.answers['iptables-save'] = set.join('')
      for (let times = 0; times < 3; times++) expect(await firewall.ensure(SUBNET)).toEqual([])
      expect(host.inputs('iptables-restore')).toHaveLength(2)
      const lines = set[0]!.split('\n')
      const at = lines.findIndex((line) => line.startsWith('-A FLANNEL-POSTRTG'))
      const swapped = lines
        .with(at, lines[at + 1]!)
        .with(at + 1, lines[at]!)
        .join('\n')
      Object.assign(host.answers, { 'iptables-save': swapped + set[1], 'iptables-save -t nat': swapped })
      expect(await firewall.ensure(SUBNET)).toEqual(['rules of FLANNEL-POSTRTG'])
    },
  )

  it('reads its own chains alone where that costs less than all of them, and all where one goes or cannot be shown', async () => {
    const asked = async (
      answers: Record<string, string | Error>,
      wish: Partial<FirewallOptions> = {},
    ): Promise<readonly string[]> => {
      const host = fakeHost({ ...MODERN, ...answers })
      const firewall = createIptables(host.options(wish))
      await firewall.raise(SUBNET)
      await firewall.ensure(SUBNET)
      const listings = host.calls.filter(({ file, args }) => file === 'iptables-save' || args.includes('-S'))
      return [...new Set(listings.map(({ file, args }) => [file, ...args].join(' ')))]
    }
    const nat = ['POSTROUTING', 'FLANNEL-POSTRTG', 'FLANNEL'].map((chain) => `iptables -t nat -S ${chain}`)
    const filter = ['FORWARD', 'FLANNEL-FWD'].map((chain) => `iptables -t filter -S ${chain}`)
    expect(await asked({})).toEqual([...nat, ...filter])
    expect(await asked({ 'iptables --version': 'iptables v1.8.9 (legacy)' })).toEqual([
      ...['iptables-save', 'iptables-save -t nat', 'iptables-save -t filter'],
    ])
    const left =
      '*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\nCOMMIT\n'
    expect(await asked({ 'iptables-save': left }, { masq: false })).toEqual([...nat, 'iptables-save', ...filter])
    expect(await asked({ 'iptables -t nat -S POSTROUTING': refused('use nft') }, { forward: false })).toEqual([
      ...[nat[0], 'iptables-save', 'iptables-save -t nat'],
      ...filter,
    ])
  })

  it('keeps the rules of another daemon in its chains, also where one of them does not answer', async () => {
    const other = '-A FLANNEL-FWD -s 10.9.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT'
    const listing = `*filter\n:FLANNEL-FWD - [0:0]\n${other}\nCOMMIT\n`
    for (const own of [undefined, late()]) {
      const host = fakeHost({ ...MODERN, 'iptables-save': listing })
      if (own) host.answers['iptables -t filter -S FLANNEL-FWD'] = own
      await createIptables(host.options({ masq: false })).raise(SUBNET)
      expect(host.inputs('iptables-restore').at(-1)).toContain(`\n${other}\n`)
    }
  })

  it('takes rules of an older version away in the same transaction that brings its own', async () => {
    const old = [
      '-A POSTROUTING -s 10.7.0.0/16 -d 10.7.0.0/16 -j RETURN',
      '-A POSTROUTING -s 10.7.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE',
      '-A POSTROUTING ! -s 10.7.0.0/16 -d 10.7.0.0/16 -j MASQUERADE',
    ]
    const host = fakeHost({ ...MODERN, 'iptables-save': `*nat\n${old.join('\n')}\nCOMMIT\n` })
    // Those of the network that subnet.env still names.
    const previous = { network: parseIpv4Net('10.7.0.0/16')!, subnet: undefined }
    await createIptables(host.options({ previous })).raise(SUBNET)
    const [nat = ''] = host.inputs('iptables-restore')
    expect(nat.startsWith(`*nat\n${old.join('\n').replaceAll('-A', '-D')}\n:FLANNEL-POSTRTG - [0:0]\n`)).toBe(true)
    expect(nat.match(/COMMIT/g)).toHaveLength(1)
  })
})

describe('nftables', () => {
  it('logs what flanneld logs, in its order', async () => {
    const host = fakeHost({ nft: '' })
    await createNftables(host.options({})).raise(SUBNET)
    expect(host.lines).toEqual([
      'I Cleaning-up unused traffic manager rules',
      'I Cleaning-up iptables rules...',
      'I Starting flannel in nftables mode...',
      'I nftables: setting up masking rules (ipv4)',
      'I Changing default FORWARD chain policy to ACCEPT',
    ])
  })

  it('ends without nft, whatever is wanted', async () => {
    for (const wish of [{}, { masq: false }, { masq: false, forward: false }])
      await expect(createNftables(fakeHost({}).options(wish)).raise(SUBNET)).rejects.toMatchObject({
        code: 'COMMAND',
        message: 'no nftables support: nft is not installed',
        remedy: 'install it',
      })
  })

  it('ends when masquerade is refused, and goes on when only forward rules are', async () => {
    const host = fakeHost({ nft: '', 'nft -f -': refused('no hook') })
    await expect(createNftables(host.options({})).raise(SUBNET)).rejects.toThrow(
      "Failed to setup masq rules, nftables: couldn't setup masq rules: `x` failed: no hook",
    )
    await createNftables(host.options({ masq: false })).raise(SUBNET)
    expect(host.lines.at(-1)).toBe("E nftables: couldn't setup forward rules: `x` failed: no hook")
  })

  it('changes nothing where nft does not show its table, which others may have rules in', async () => {
    const host = fakeHost({ nft: '', 'nft -s list table ip flannel-ipv4': late() })
    await expect(createNftables(host.options({})).ensure(SUBNET)).rejects.toThrow('no answer within 10 s')
    expect(host.calls.filter(({ args }) => args.join(' ') === '-f -')).toEqual([])
    host.answers['nft -s list table ip flannel-ipv4'] = refused('No such file or directory')
    await createNftables(host.options({})).ensure(SUBNET)
    expect(host.inputs('nft').some((input) => input.includes('masquerade fully-random'))).toBe(true)
  })

  it('does not take for its own what another program left right after it', async () => {
    const host = fakeHost({ nft: '', 'nft -s list table ip flannel-ipv4': 'table ip flannel-ipv4 {\n}\n' })
    const firewall = createNftables(host.options({}))
    await firewall.raise(SUBNET)
    expect(await firewall.ensure(SUBNET)).toEqual(['the table flannel-ipv4'])
    delete host.answers['nft -s list table ip flannel-ipv4']
    expect(await firewall.ensure(SUBNET)).toEqual(['the table flannel-ipv4'])
    const asked = host.inputs('nft').length
    expect(await firewall.ensure(SUBNET)).toEqual([])
    expect(host.inputs('nft').length).toBe(asked + 1)
  })

  it.each([
    [true, false, 'masquerade fully-random\n', []],
    [true, true, 'masquerade\n', []],
    [false, false, 'masquerade\n', ['W nftables: random fully unsupported']],
  ])('kernel knows fully-random: %s, --ip-masq-fully-random-disable: %s', async (knows, plainPorts, rule, said) => {
    const host = fakeHost({ nft: '', ...(knows ? {} : { 'nft -c -f -': refused('syntax error') }) })
    await createNftables(host.options({ plainPorts })).raise(SUBNET)
    const input = host.inputs('nft').find((text) => text.includes('chain postrtg'))!
    expect(input).toContain(`ip daddr != 224.0.0.0/4 ${rule}`)
    expect(host.lines.filter((line) => line.startsWith('W'))).toEqual(said)
    const probes = host.calls.filter(({ args }) => args[0] === '-c')
    expect(probes).toHaveLength(plainPorts ? 0 : 1)
  })
})

describe('the firewall', () => {
  it.each([
    ['iptables', 'iptables-restore'],
    ['nftables', 'nft'],
  ] as const)('by %s sets its rules by %s', async (tool, program) => {
    const host = fakeHost(MODERN)
    await createFirewall(tool, { ...host.options({}), blackhole: false }).raise(SUBNET)
    expect(host.inputs(program).join('')).toContain('10.42.7.0/24')
    expect(host.inputs('ip')).toEqual([])
  })

  it('says at the start that the blackhole route cannot be had, and fails of it from then on', async () => {
    const host = fakeHost({ ...MODERN, 'ip -j -4 route show root 10.42.0.0/16': '', ip: refused('no route today') })
    const firewall = createFirewall('iptables', { ...host.options({ masq: false, forward: false }), blackhole: true })
    await firewall.raise(SUBNET)
    const failure = 'Failed to setup blackhole route, `x` failed: no route today'
    expect(host.lines.at(-1)).toBe(`E ${failure}`)
    await expect(firewall.ensure(SUBNET)).rejects.toThrow(failure)
    host.answers['ip'] = ''
    expect(await firewall.ensure(SUBNET)).toEqual([])
    expect(host.calls.at(-1)?.args.join(' ')).toBe('route add blackhole 10.42.7.0/24 metric 4294967295')
  })
})
