// firewall.test.ts - the commands of iptables and nft, the log lines of flanneld, and the failures that end the start.

import { beforeEach, describe, expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Run } from '../../../../src/host/command.ts'
import type { Nets } from '../../../../src/net/address.ts'
import { parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../../src/net/ipv6.ts'
import type { Ensured, FirewallOptions } from '../../../../src/path/firewall/families.ts'
import { createFirewall } from '../../../../src/path/firewall/firewall.ts'
import { createIptables } from '../../../../src/path/firewall/iptables.ts'
import { createNftables } from '../../../../src/path/firewall/nftables.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

/** The paths of files that must seem to be missing. */
const hidden = vi.hoisted(() => new Set<string>())
vi.mock('node:fs/promises', async (load) => ({
  ...(await load<object>()),
  access: async (path: string) => {
    if (hidden.has(path)) throw new Error(path)
  },
}))
beforeEach(() => hidden.clear())

const NETWORK = { ipv4: parseIpv4Net('10.42.0.0/16')! }
const SUBNET = { ipv4: parseIpv4Net('10.42.7.0/24')! }
const NETWORK_6 = { ipv6: parseIpv6Net('fd00:42::/48')! }
const SUBNET_6 = { ipv6: parseIpv6Net('fd00:42:0:7::/64')! }
const BOTH = { network: { ...NETWORK, ...NETWORK_6 }, subnet: { ...SUBNET, ...SUBNET_6 } }
const fine = (...repaired: string[]): Ensured => ({ repaired, failures: [] })
/** Returns the messages of the failures. */
const failuresOf = async (work: Promise<Ensured>): Promise<string[]> =>
  (await work).failures.map(({ message }) => message)

interface Call {
  readonly file: string
  readonly args: readonly string[]
  readonly input: string
  readonly patient: boolean | undefined
}

/** A host whose commands print `answers`, found by program and arguments or by program; an Error is thrown. */
function fakeHost(given: Readonly<Record<string, string | Error>>, verbosity = 0) {
  const answers: Record<string, string | Error> = { ...given }
  const calls: Call[] = []
  const lines: string[] = []
  const kernel = new ModelKernel()
  /** The last input for each table, by program and table, or by nft's family. */
  const tables = new Map<string, string>()
  const run: Run = async (file, args, options) => {
    const input = options?.input ?? ''
    calls.push({ file, args, input, patient: options?.patient })
    const command = [file, ...args].join(' ')
    const [, program = '', table, chain] = /^(ip6?tables) -t (\S+) -S (\S+)$/.exec(command) ?? []
    if (table !== undefined && chain !== undefined && answers[command] === undefined && answers[file] === undefined)
      return showChain(program, table, chain)
    const answer = answers[command] ?? answers[file]
    if (answer instanceof Error) throw answer
    if (answer === undefined) throw missing(file)
    if (file.endsWith('-restore'))
      for (const [, name = ''] of input.matchAll(/^\*(\S+)$/gm)) tables.set(file.replace('-restore', ` ${name}`), input)
    if (command === 'nft -f -')
      for (const [, family = ''] of input.matchAll(/^table (ip6?) /gm)) tables.set(family, input)
    // The listing of a table shows its last input, unless the host has another answer.
    const [, ofAll] = kernel.nft ? (/^(ip6?tables)-save$/.exec(command) ?? []) : []
    if (ofAll !== undefined)
      return answer + [...tables].flatMap(([key, text]) => (key.startsWith(`${ofAll} `) ? text : [])).join('')
    if (answers[command] !== undefined) return answer
    const [, ofProgram = '', name = ''] = /^(ip6?tables)-save -t (\S+)$/.exec(command) ?? []
    const [, family] = /^nft -s list table (ip6?) /.exec(command) ?? []
    return tables.get(family ?? `${ofProgram} ${name}`) ?? answer
  }
  /** Answers like iptables-nft, from the listing of all rules. */
  function showChain(program: string, table: string, chain: string): string {
    const there =
      answers[`${program}-save -t ${table}`] ??
      tables.get(`${program} ${table}`) ??
      answers[`${program}-save`] ??
      missing(program)
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
    network: NETWORK,
    masq: true,
    forward: true,
    plainPorts: false,
    previous: { network: {}, subnet: {} },
    run,
    kernel,
    log,
    ...wish,
  })
  const inputs = (file: string): string[] => calls.filter((call) => call.file === file).map(({ input }) => input)
  return { answers, calls, lines, options, inputs, kernel, tables }
}
const missing = (path: string): WeftError =>
  new WeftError('COMMAND', `${path} is not installed`, {
    remedy: 'install it',
    cause: Object.assign(new Error(path), { code: 'ENOENT', path }),
  })
const refused = (what: string): WeftError =>
  new WeftError('COMMAND', `\`x\` failed: ${what}`, { cause: Object.assign(new Error(what), { code: 1 }) })
/** The error of a command that was killed after its time limit. */
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
const MODERN_6 = {
  'ip6tables --version': 'ip6tables v1.8.9 (nf_tables)\n',
  'ip6tables-save': '',
  'ip6tables-restore': '',
}

describe('iptables', () => {
  it('logs what flanneld logs, in its order', async () => {
    const host = fakeHost(MODERN)
    await createIptables(host.options({})).raise(SUBNET)
    expect(host.lines).toEqual([
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
    expect(again.lines.slice(3)).toEqual(['I Setting up masking rules', 'I bootstrap done'])
    again.answers['iptables-save -t nat'] = '*nat\nCOMMIT\n'
    await firewall.ensure(SUBNET)
    expect(again.lines.slice(5)).toEqual([
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
  ])('at -v %d logs about an nft table that cannot be removed: %j', async (verbosity, said) => {
    const left = { 'nft -s list table ip flannel-ipv4': 'table ip flannel-ipv4 {\n}\n' }
    const host = fakeHost({ ...MODERN, nft: '', ...left, 'nft -f -': refused('no such table') }, verbosity)
    await createIptables(host.options({ previous: { network: NETWORK, subnet: SUBNET } })).raise(SUBNET)
    expect(host.inputs('nft').at(-1)).toContain('delete table ip flannel-ipv4')
    expect(host.lines).toEqual([
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

  it.each(['iptables', 'nftables'] as const)(
    'checks again for unwanted rules after the predecessor has ended: %s',
    async (mode) => {
      const left =
        mode === 'iptables'
          ? '*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\nCOMMIT\n'
          : ''
      const host = fakeHost({ ...MODERN, 'iptables-nft-save': '', 'iptables-legacy-save': '' })
      const make = mode === 'iptables' ? createIptables : createNftables
      const firewall = make(host.options({ masq: false, forward: mode === 'nftables' }))
      await firewall.raise(SUBNET)
      await firewall.ensure(SUBNET)
      // The predecessor has restored its rules in the meantime.
      host.answers['iptables-save'] = left
      host.answers['iptables-nft-save'] = '*nat\n:FLANNEL-POSTRTG - [0:0]\nCOMMIT\n'
      host.answers['iptables-nft-restore'] = ''
      const gone = () => [...host.inputs('iptables-restore'), ...host.inputs('iptables-nft-restore')].join('')
      await firewall.ensure(SUBNET)
      expect(gone()).not.toContain('-X FLANNEL-POSTRTG')
      firewall.lookAgain?.()
      await firewall.ensure(SUBNET)
      expect(gone()).toContain('-X FLANNEL-POSTRTG')
    },
  )

  it('removes the unwanted rules of nft later if nft does not answer', async () => {
    const listing = 'nft -s list table ip flannel-ipv4'
    const host = fakeHost(MODERN)
    const firewall = createIptables(host.options({}))
    await firewall.raise(SUBNET)
    host.answers[listing] = late()
    firewall.lookAgain?.()
    await firewall.ensure(SUBNET)
    host.answers[listing] = 'table ip flannel-ipv4 { # handle 1\n\tchain postrtg {\n\t}\n}\n'
    expect(host.inputs('nft').join('')).not.toContain('delete')
    await firewall.ensure(SUBNET)
    expect(host.inputs('nft').join('')).toContain('delete table ip flannel-ipv4')
    host.calls.length = 0
    await firewall.ensure(SUBNET)
    expect(host.inputs('nft')).toEqual([])
  })

  it.each(['iptables', 'nftables'] as const)(
    'checks again for unwanted rules if the successor dies during a check: %s',
    async (mode) => {
      const host = fakeHost({
        ...MODERN,
        'iptables-nft-save': '',
        'iptables-legacy-save': '',
        'iptables-nft-restore': '',
      })
      const { run, ...rest } = host.options({ masq: false, forward: mode === 'nftables' })
      let onRun = (): void => {}
      const watched: Run = (...command) => run(...command).finally(() => onRun())
      const make = mode === 'iptables' ? createIptables : createNftables
      const firewall = make({ ...rest, run: watched })
      await firewall.raise(SUBNET)
      host.calls.length = 0
      firewall.lookAgain?.()
      await firewall.ensure(SUBNET)
      const isOther = ({ file }: Call): boolean => mode === 'iptables' || file.startsWith('iptables')
      const count = host.calls.filter(isOther).length
      host.calls.length = 0
      onRun = () => {
        if (host.calls.filter(isOther).length < count) return
        // The check has just read the rules for the last time.
        onRun = () => {}
        const left = '*filter\n:FLANNEL-FWD - [0:0]\nCOMMIT\n'
        Object.assign(host.answers, { 'iptables-save': left, 'iptables-nft-save': left })
        firewall.lookAgain?.()
      }
      firewall.lookAgain?.()
      await firewall.ensure(SUBNET)
      const gone = () => [...host.inputs('iptables-restore'), ...host.inputs('iptables-nft-restore')].join('')
      expect(gone()).toBe('')
      await firewall.ensure(SUBNET)
      expect(gone()).toContain('-X FLANNEL-FWD')
    },
  )

  it("continues if an earlier network's rules cannot be removed, and tries again", async () => {
    const host = fakeHost({ ...MODERN, 'iptables-restore': refused('busy') })
    const previous = { network: { ipv4: parseIpv4Net('10.7.0.0/16')! }, subnet: {} }
    const firewall = createIptables(host.options({ previous }))
    await firewall.raise(SUBNET)
    expect(host.lines.at(-1)).toBe('E Failed to bootstrap IPTables: `x` failed: busy')
    const old = '-A POSTROUTING ! -s 10.7.0.0/16 -d 10.7.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE'
    Object.assign(host.answers, { 'iptables-restore': '', 'iptables-save': `*nat\n${old}\nCOMMIT\n` })
    await firewall.ensure(SUBNET)
    expect(host.inputs('iptables-restore').at(-2)).toContain(`\n${old.replace('-A', '-D')}\n`)
  })

  it('continues without the binary, logs that, and sets the rules when it is installed', async () => {
    const host = fakeHost({ nft: '' })
    const firewall = createIptables(host.options({}))
    await firewall.raise(SUBNET)
    expect(host.lines.at(-1)).toBe(
      'E Failed to setup IPTables. iptables binary was not found: iptables is not installed; install it',
    )
    expect(await failuresOf(firewall.ensure(SUBNET))).toEqual(
      Array(2).fill('Failed to ensure iptables rules: iptables is not installed'),
    )
    Object.assign(host.answers, MODERN)
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.inputs('iptables-restore')).toHaveLength(2)
  })

  it('names the missing program', async () => {
    const host = fakeHost({ ...MODERN, 'iptables-restore': missing('iptables-restore') })
    await createIptables(host.options({})).raise(SUBNET)
    expect(host.lines.at(-1)).toContain('Failed to setup IPTables. iptables-restore binary was not found: ')
  })

  it('sets forward rules if the kernel refuses masquerading', async () => {
    const host = fakeHost(MODERN)
    const { run, ...rest } = host.options({})
    const picky: Run = (file, args, options) =>
      options?.input?.startsWith('*nat') ? Promise.reject(refused('no nat')) : run(file, args, options)
    await createIptables({ ...rest, run: picky }).raise(SUBNET)
    expect(host.inputs('iptables-restore').map((input) => input.split('\n')[0])).toEqual(['*filter'])
    expect(host.lines.slice(-3)).toEqual([
      'E Failed to bootstrap IPTables: `x` failed: no nat',
      'I Changing default FORWARD chain policy to ACCEPT',
      'I bootstrap done',
    ])
  })

  it('with both flags off removes the rules of an earlier run once, and then runs no command', async () => {
    const host = fakeHost({
      ...MODERN,
      'iptables-save':
        '*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\n' +
        '-A FLANNEL-POSTRTG -s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE\n' +
        'COMMIT\n*filter\n:FLANNEL-FWD - [0:0]\n-A FLANNEL-FWD -s 10.9.0.0/16 -j ACCEPT\nCOMMIT\n',
    })
    const firewall = createIptables(host.options({ masq: false, forward: false }))
    await firewall.raise(SUBNET)
    // Another daemon on this host, with another network, owns the second chain.
    expect(host.inputs('iptables-restore')).toEqual([
      '*nat\n-D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\n' +
        '-F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n',
    ])
    const called = host.calls.length
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.calls).toHaveLength(called)
    expect(host.lines).toHaveLength(3)
  })

  it('with both flags off needs no iptables', async () => {
    const host = fakeHost({ nft: '' })
    const firewall = createIptables(host.options({ masq: false, forward: false }))
    await firewall.raise(SUBNET)
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.lines.filter((line) => !line.startsWith('I'))).toEqual([])
  })

  it('does not accept the changes that another program makes right after it', async () => {
    const host = fakeHost({ ...MODERN, 'iptables-save -t nat': '*nat\nCOMMIT\n' })
    const firewall = createIptables(host.options({ forward: false }))
    await firewall.raise(SUBNET)
    for (let times = 0; times < 2; times++)
      expect(await firewall.ensure(SUBNET)).toEqual(fine('rules of FLANNEL-POSTRTG'))
    expect(host.inputs('iptables-restore')).toHaveLength(3)
  })

  it.each(['iptables v1.8.9 (nf_tables)', 'iptables v1.8.9 (legacy)'])(
    '%s: writes nothing without a change, and everything if the order of rules changed',
    async (version) => {
      const host = fakeHost({ ...MODERN, 'iptables --version': version })
      const firewall = createIptables(host.options({}))
      await firewall.raise(SUBNET)
      const set = host.inputs('iptables-restore')
      expect(set).toHaveLength(2)
      host.answers['iptables-save'] = set.join('')
      for (let times = 0; times < 3; times++) expect(await firewall.ensure(SUBNET)).toEqual(fine())
      expect(host.inputs('iptables-restore')).toHaveLength(2)
      const lines = set[0]!.split('\n')
      const at = lines.findIndex((line) => line.startsWith('-A FLANNEL-POSTRTG'))
      const swapped = lines
        .with(at, lines[at + 1]!)
        .with(at + 1, lines[at]!)
        .join('\n')
      Object.assign(host.answers, { 'iptables-save': swapped + set[1], 'iptables-save -t nat': swapped })
      expect(await firewall.ensure(SUBNET)).toEqual(fine('rules of FLANNEL-POSTRTG'))
    },
  )

  it('reads only its own chains if that is cheaper, and all rules if a chain must go or cannot be shown', async () => {
    const called = async (
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
    expect(await called({})).toEqual([...nat, ...filter])
    expect(await called({ 'iptables --version': 'iptables v1.8.9 (legacy)' })).toEqual([
      'iptables-save',
      'iptables-save -t nat',
      'iptables-save -t filter',
    ])
    const left =
      '*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\nCOMMIT\n'
    expect(await called({ 'iptables-save': left }, { masq: false })).toEqual([...nat, 'iptables-save', ...filter])
    expect(await called({ 'iptables -t nat -S POSTROUTING': refused('use nft') }, { forward: false })).toEqual([
      nat[0],
      'iptables-save',
      ...filter,
      'iptables-save -t nat',
    ])
  })

  describe('on a host with few chains', () => {
    const FEW = [{ family: 'ip', name: 'nat', objects: 7 }]
    const HEADER = '# Generated by iptables-save v1.8.9 (nf_tables) on Fri Nov 27 00:00:00 2026\n'
    const called = ({ calls }: ReturnType<typeof fakeHost>) => calls.map(({ file, args }) => [file, ...args].join(' '))

    it('starts four programs, and one for each check', async () => {
      const host = fakeHost({ ...MODERN, 'iptables-save': HEADER })
      host.kernel.nft = FEW
      const firewall = createIptables(host.options({}))
      await firewall.raise(SUBNET)
      const restore = 'iptables-restore --noflush --wait'
      expect(called(host)).toEqual(['iptables-save', restore, restore, 'iptables-save'])
      host.calls.length = 0
      for (let times = 0; times < 2; times++) expect(await firewall.ensure(SUBNET)).toEqual(fine())
      expect(called(host)).toEqual(['iptables-save', 'iptables-save'])
      host.tables.set('iptables nat', '*nat\nCOMMIT\n') // another program deletes the rules
      expect(await firewall.ensure(SUBNET)).toEqual(fine('rules of FLANNEL-POSTRTG'))
      expect(await firewall.ensure(SUBNET)).toEqual(fine())
    })

    it.each(['nf_tables', 'legacy'])('without tables of nftables starts as few programs with %s', async (variant) => {
      const host = fakeHost({ ...MODERN, 'iptables --version': `iptables v1.8.9 (${variant})\n` })
      host.kernel.nft = []
      const raising = createIptables(host.options({})).raise(SUBNET)
      while (host.inputs('iptables-restore').length === 0) await Promise.resolve()
      host.kernel.nft = FEW
      await raising
      const restore = 'iptables-restore --noflush --wait'
      const listing = variant === 'legacy' ? ['iptables-save'] : []
      expect(called(host)).toEqual(['iptables --version', ...listing, restore, restore, 'iptables-save'])
      expect(host.inputs('iptables-restore')[0]).toContain('--random-fully')
    })

    it('reads only its own chains after another program has made many', async () => {
      const host = fakeHost({ ...MODERN, 'iptables-save': HEADER })
      host.kernel.nft = FEW
      const firewall = createIptables(host.options({}))
      await firewall.raise(SUBNET)
      host.kernel.nft = [{ family: 'ip', name: 'nat', objects: 5000 }]
      host.calls.length = 0
      expect(await firewall.ensure(SUBNET)).toEqual(fine())
      expect(called(host)).not.toContain('iptables-save')
      host.kernel.nft = [...FEW, { family: 'ip6', name: 'nat', objects: 5000 }]
      host.calls.length = 0
      expect(await firewall.ensure(SUBNET)).toEqual(fine())
      expect(called(host)).toEqual(['iptables-save'])
    })

    it('removes the rules of nftables mode', async () => {
      const host = fakeHost({ ...MODERN, 'iptables-save': HEADER, nft: 'table ip flannel-ipv4 {\n}\n' })
      host.kernel.nft = [...FEW, { family: 'ip', name: 'flannel-ipv4', objects: 2 }]
      await createIptables(host.options({})).raise(SUBNET)
      expect(host.inputs('nft').at(-1)).toContain('delete table ip flannel-ipv4')
    })

    it('removes from the tables of nftables mode only the rules of this daemon', async () => {
      const rules = ['10.42.0.0/16', '10.9.0.0/16'].map((network) => `    ip saddr ${network} accept\n`).join('')
      const chain = `  chain forward {\n    type filter hook forward priority filter; policy accept;\n${rules}  }\n`
      const host = fakeHost({ ...MODERN, 'iptables-save': HEADER, nft: `table ip flannel-ipv4 {\n${chain}}\n` })
      host.kernel.nft = [...FEW, { family: 'ip', name: 'flannel-ipv4', objects: 3 }]
      await createIptables(host.options({})).raise(SUBNET)
      const input = host.inputs('nft').at(-1)
      expect(input).toContain('ip saddr 10.9.0.0/16 accept')
      expect(input).not.toMatch(/delete table|10\.42\./)
    })
  })

  it('keeps the rules of another daemon in its chains, also if a listing fails', async () => {
    const other = '-A FLANNEL-FWD -s 10.9.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT'
    const listing = `*filter\n:FLANNEL-FWD - [0:0]\n${other}\nCOMMIT\n`
    for (const own of [undefined, late()]) {
      const host = fakeHost({ ...MODERN, 'iptables-save': listing })
      if (own) host.answers['iptables -t filter -S FLANNEL-FWD'] = own
      await createIptables(host.options({ masq: false })).raise(SUBNET)
      expect(host.inputs('iptables-restore').at(-1)).toContain(`\n${other}\n`)
    }
  })

  it('removes the rules of an older version in the transaction that sets its own', async () => {
    const old = [
      '-A POSTROUTING -s 10.7.0.0/16 -d 10.7.0.0/16 -j RETURN',
      '-A POSTROUTING -s 10.7.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE',
      '-A POSTROUTING ! -s 10.7.0.0/16 -d 10.7.0.0/16 -j MASQUERADE',
    ]
    const host = fakeHost({ ...MODERN, 'iptables-save': `*nat\n${old.join('\n')}\nCOMMIT\n` })
    // The rules of the network in subnet.env are removed too.
    const previous = { network: { ipv4: parseIpv4Net('10.7.0.0/16')! }, subnet: {} }
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

  it('starts programs for tables of iptables-nft and of flannel only if the kernel has such tables', async () => {
    const called = async (...names: readonly string[]): Promise<readonly string[]> => {
      const host = fakeHost({ ...MODERN, ...MODERN_6, 'iptables-nft-save': '', 'ip6tables-nft-save': '' })
      host.kernel.nft = names.map((name) => ({ family: 'ip', name, objects: 1 }))
      host.kernel.legacy = []
      await createNftables(host.options({})).raise(SUBNET)
      const programs = host.calls.map(({ file, args }) => [file, ...args].join(' '))
      return programs.filter((words) => /^iptables|list table/.test(words))
    }
    expect(await called()).toEqual([])
    expect(await called('mangle', 'own')).toEqual([])
    expect(await called('nat')).toEqual(['iptables-nft-save'])
    expect(await called('flannel-ipv4')).toEqual(Array(2).fill('nft -s list table ip flannel-ipv4'))
  })

  it('ends the start without nft, regardless of the wanted rules', async () => {
    for (const wish of [{}, { masq: false }, { masq: false, forward: false }])
      await expect(createNftables(fakeHost({}).options(wish)).raise(SUBNET)).rejects.toMatchObject({
        code: 'COMMAND',
        message: 'no nftables support: nft is not installed',
        remedy: 'install it',
      })
  })

  it('ends the start if masquerading is refused, and continues if only forward rules are', async () => {
    const host = fakeHost({ nft: '', 'nft -f -': refused('no hook') })
    await expect(createNftables(host.options({})).raise(SUBNET)).rejects.toThrow(
      "Failed to setup masq rules, nftables: couldn't setup masq rules: `x` failed: no hook",
    )
    await createNftables(host.options({ masq: false })).raise(SUBNET)
    expect(host.lines.at(-1)).toBe("E nftables: couldn't setup forward rules: `x` failed: no hook")
  })

  it('changes nothing if nft does not show its table, which may have rules of others', async () => {
    const host = fakeHost({ nft: '', 'nft -s list table ip flannel-ipv4': late() })
    expect(await failuresOf(createNftables(host.options({})).ensure(SUBNET))).toEqual([
      "nftables: couldn't setup masq rules: `x` failed: no answer within 10 s",
    ])
    expect(host.calls.filter(({ args }) => args.join(' ') === '-f -')).toEqual([])
    // nft also fails if it cannot read the kernel's state. Then it is not known whose rules exist.
    for (const why of [
      'Could not process rule: Operation not permitted',
      'cache initialization failed: Interrupted system call',
    ]) {
      host.answers['nft -s list table ip flannel-ipv4'] = refused(why)
      expect(await failuresOf(createNftables(host.options({})).ensure(SUBNET))).toEqual([expect.stringContaining(why)])
      expect(host.calls.filter(({ args }) => args.join(' ') === '-f -')).toEqual([])
    }
    host.answers['nft -s list table ip flannel-ipv4'] = refused('No such file or directory')
    await createNftables(host.options({})).ensure(SUBNET)
    expect(host.inputs('nft').some((input) => input.includes('masquerade fully-random'))).toBe(true)
  })

  it('does not accept the changes that another program makes right after it', async () => {
    const host = fakeHost({ nft: '', 'nft -s list table ip flannel-ipv4': 'table ip flannel-ipv4 {\n}\n' })
    const firewall = createNftables(host.options({}))
    await firewall.raise(SUBNET)
    expect(await firewall.ensure(SUBNET)).toEqual(fine('the table flannel-ipv4'))
    delete host.answers['nft -s list table ip flannel-ipv4']
    expect(await firewall.ensure(SUBNET)).toEqual(fine('the table flannel-ipv4'))
    const called = host.inputs('nft').length
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.inputs('nft').length).toBe(called + 1)
  })

  it.each([
    [true, false, 'masquerade fully-random\n', []],
    [true, true, 'masquerade\n', []],
    [false, false, 'masquerade\n', ['W nftables: random fully unsupported']],
  ])(
    'the kernel supports fully-random: %s, --ip-masq-fully-random-disable: %s',
    async (knows, plainPorts, rule, said) => {
      const host = fakeHost({ nft: '' })
      const options = host.options({ ...BOTH, plainPorts })
      const firewall = createNftables(knows ? options : refusing(options, (input) => input.includes('fully-random')))
      await firewall.raise(BOTH.subnet)
      const inputs = host.inputs('nft').filter((text) => text.includes('chain postrtg'))
      expect(inputs).toEqual([
        expect.stringContaining(`ip daddr != 224.0.0.0/4 ${rule}`),
        expect.stringContaining(`ip6 daddr != ff00::/8 ${rule}`),
      ])
      expect(host.lines.filter((line) => line.startsWith('W'))).toEqual(said)
      const called = host.calls.length
      expect(await firewall.ensure(BOTH.subnet)).toEqual(fine())
      expect(host.calls.slice(called).map(({ args }) => args[1])).toEqual(['list', 'list'])
    },
  )

  /** Returns options whose nft refuses these inputs. `host` does not record the refused inputs. */
  function refusing({ run, ...rest }: FirewallOptions, isRefused: (input: string) => boolean): FirewallOptions {
    const picky: Run = (file, args, more) =>
      isRefused(more?.input ?? '') ? Promise.reject(refused('syntax error')) : run(file, args, more)
    return { ...rest, run: picky }
  }

  it('uses fully random ports even if nft once refuses its rules for another reason', async () => {
    const host = fakeHost({ nft: '' })
    let isBusy = true
    const firewall = createNftables(
      refusing(host.options({}), (input) => isBusy && input.includes('flannel') && input.includes('fully-random')),
    )
    await expect(firewall.raise(SUBNET)).rejects.toThrow('syntax error')
    isBusy = false
    expect((await firewall.ensure(SUBNET)).failures).toEqual([])
    expect(host.inputs('nft').at(-2)).toContain('masquerade fully-random\n')
    expect(host.lines.filter((line) => line.startsWith('W'))).toEqual([])
  })

  it.each([
    ['hangs', 'nft', late()],
    ['refuses everything', 'nft', refused('no nf_tables')],
    ['hangs when it sets the rules', 'nft -f -', late()],
    ['refuses all rules', 'nft -f -', refused('no nat')],
  ])('an nft that %s gives no answer about fully-random, and is run again', async (_how, command, trouble) => {
    const host = fakeHost({ nft: '', 'nft --version': 'nftables v1.0.6', [command]: trouble })
    if (command !== 'nft') host.answers['nft -c -f -'] = trouble
    const firewall = createNftables(host.options({}))
    await expect(firewall.raise(SUBNET)).rejects.toMatchObject({ code: 'COMMAND' })
    host.answers['nft'] = ''
    delete host.answers['nft -c -f -']
    if (command !== 'nft') delete host.answers[command]
    const called = host.calls.length
    expect((await firewall.ensure(SUBNET)).failures).toEqual([])
    const inputs = host.calls.slice(called).map(({ input }) => input)
    expect(inputs.find((text) => text.includes('chain postrtg'))).toContain('masquerade fully-random\n')
    expect(host.lines.filter((line) => line.includes('random fully unsupported'))).toEqual([])
  })

  describe('with its check before the lease', () => {
    const called = ({ calls }: ReturnType<typeof fakeHost>) => calls.map(({ args }) => args.join(' '))

    it('starts three programs', async () => {
      const host = fakeHost({ nft: '' })
      host.kernel.nft = []
      host.kernel.legacy = []
      const firewall = createNftables(host.options({}))
      await firewall.check?.()
      const raising = firewall.raise(SUBNET)
      while (!called(host).includes('-f -')) await Promise.resolve()
      host.kernel.nft = [{ family: 'ip', name: 'flannel-ipv4', objects: 2 }]
      await raising
      expect(called(host)).toEqual(['-c -f -', '-f -', '-s list table ip flannel-ipv4'])
    })

    it('checks both families with one program, and names the family that the kernel refuses', async () => {
      const host = fakeHost({ nft: '' })
      host.kernel.nft = []
      await createNftables(host.options(BOTH)).check?.()
      expect(host.inputs('nft')).toEqual([expect.stringMatching(/10\.42\.0\.0[^]*fd00:42::/)])
      const wish = { ...BOTH, forward: false }
      await createNftables(refusing(host.options(wish), (input) => input.includes('fd00'))).check?.()
      await expect(createNftables(refusing(host.options(wish), (input) => input !== '')).check?.()).rejects.toThrow(
        "Failed to setup masq rules, nftables: couldn't setup masq rules: `x` failed: syntax error",
      )
    })

    it('names a missing nft, and waits for no second answer of an nft that hangs', async () => {
      await expect(createNftables(fakeHost({}).options({})).check?.()).rejects.toThrow(
        'no nftables support: nft is not installed',
      )
      const host = fakeHost({ nft: late() })
      await createNftables(host.options({})).check?.()
      expect(host.calls).toHaveLength(1)
    })
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

  it.each([
    [true, 'iptables', ['blackhole 10.42.7.0/24 metric 4294967295']],
    [false, 'iptables', []],
    [false, 'nftables', []],
  ] as const)(
    'with --ip-blackhole-route=%s by %s removes the routes of earlier subnets',
    async (blackhole, tool, own) => {
      const host = fakeHost(MODERN)
      const before = { network: { ipv4: parseIpv4Net('10.9.0.0/16')! }, subnet: { ipv4: parseIpv4Net('10.9.7.0/24')! } }
      const add = (destination: string, metric: number): void =>
        host.kernel.addRoute('ipv4', { type: 'blackhole', destination, metric })
      for (const subnet of ['10.42.5.0/24', '10.42.7.0/24', '10.9.7.0/24', '10.9.8.0/24']) add(subnet, 4294967295)
      add('10.42.6.0/24', 0)
      host.kernel.addRoute('ipv4', {
        type: 'blackhole',
        destination: '10.42.9.0/24',
        metric: 4294967295,
        protocol: 'static',
      })
      const wish = { previous: before, masq: false, forward: false }
      const firewall = createFirewall(tool, { ...host.options(wish), blackhole })
      await firewall.raise(SUBNET)
      const others = [
        'blackhole 10.42.6.0/24',
        'blackhole 10.42.9.0/24 metric 4294967295',
        'blackhole 10.9.8.0/24 metric 4294967295',
      ]
      expect(host.kernel.routesAsText().toSorted()).toEqual([...others, ...own].toSorted())
      // A blackhole route that appears later belongs to another program.
      add('10.9.7.0/24', 4294967295)
      expect(await firewall.ensure(SUBNET)).toEqual(fine())
      expect(host.kernel.routesAsText()).toContain('blackhole 10.9.7.0/24 metric 4294967295')
      // The predecessor may have restored its route before it ended.
      add('10.42.5.0/24', 4294967295)
      firewall.lookAgain?.()
      expect(await firewall.ensure(SUBNET)).toEqual(fine())
      expect(host.kernel.routesAsText()).not.toContain('blackhole 10.42.5.0/24 metric 4294967295')
    },
  )

  it.each([
    ['with the flag, after another subnet', true, '10.42.5.0/24', ['blackhole 10.42.7.0/24 metric 4294967295']],
    ['with the flag, after the same subnet', true, '10.42.7.0/24', ['blackhole 10.42.7.0/24 metric 4294967295']],
    ['without the flag, after another subnet', false, '10.42.5.0/24', ['blackhole 10.42.7.0/24']],
    ['without the flag, after the same subnet', false, '10.42.7.0/24', ['blackhole 10.42.7.0/24']],
  ] as const)('%s removes the blackhole routes of flanneld', async (_what, blackhole, earlier, stays) => {
    const host = fakeHost(MODERN)
    const add = (destination: string): void =>
      host.kernel.addRoute('ipv4', { type: 'blackhole', destination, metric: 0 })
    for (const destination of new Set([earlier, '10.42.7.0/24', '10.42.6.0/24'])) add(destination)
    const network = { ipv4: parseIpv4Net('10.42.0.0/16')! }
    const previous = { network, subnet: { ipv4: parseIpv4Net(earlier)! } }
    const firewall = createFirewall('iptables', {
      ...host.options({ previous, masq: false, forward: false }),
      blackhole,
    })
    await firewall.raise(SUBNET)
    const routes = (): readonly string[] => host.kernel.routesAsText().toSorted()
    expect(routes()).toEqual(['blackhole 10.42.6.0/24', ...stays])
    // An operator may make such a route later, and weftd keeps it.
    if (!stays.some((each) => each === 'blackhole 10.42.7.0/24')) add('10.42.7.0/24')
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(routes()).toContain('blackhole 10.42.7.0/24')
  })

  it.each([
    ['the kernel does not list its routes at the start', 'iptables'],
    ['nft refuses the rules at the start', 'nftables'],
  ] as const)('removes the blackhole route of an earlier subnet later if %s', async (_why, tool) => {
    const host = fakeHost(MODERN)
    host.kernel.addRoute('ipv4', { type: 'blackhole', destination: '10.42.5.0/24', metric: 4294967295 })
    const options = host.options(tool === 'nftables' ? {} : { masq: false, forward: false })
    let isRefused = tool === 'nftables'
    const run: Run = async (file, args, more) => {
      if (isRefused && file === 'nft' && args.includes('-f'))
        throw new WeftError('COMMAND', 'no', { cause: Object.assign(new Error('no'), { code: 1 }) })
      return options.run(file, args, more)
    }
    const firewall = createFirewall(tool, { ...options, run, blackhole: false })
    if (tool === 'iptables') host.kernel.readError = new WeftError('KERNEL', 'the kernel did not answer in time')
    await firewall.raise(SUBNET).catch(() => {})
    host.kernel.readError = undefined
    isRefused = false
    expect(host.kernel.routesAsText()).toHaveLength(1)
    await firewall.ensure(SUBNET)
    expect(host.kernel.routesAsText()).toEqual([])
    // A blackhole route that appears later belongs to another program.
    host.kernel.addRoute('ipv4', { type: 'blackhole', destination: '10.42.5.0/24', metric: 4294967295 })
    await firewall.ensure(SUBNET)
    expect(host.kernel.routesAsText()).toHaveLength(1)
  })

  it('removes the IPv6 blackhole route of flanneld, which has the metric 1024', async () => {
    const host = fakeHost(MODERN)
    const [network, subnet] = [parseIpv6Net('fd00:5::/48')!, parseIpv6Net('fd00:5:0:7::/64')!]
    host.kernel.addRoute('ipv6', { type: 'blackhole', destination: 'fd00:5:0:7::/64', metric: 1024 })
    const wish = { network: { ipv6: network }, previous: { network: { ipv6: network }, subnet: { ipv6: subnet } } }
    const options = { ...host.options({ ...wish, masq: false, forward: false }), blackhole: true }
    await createFirewall('iptables', options).raise({ ipv6: subnet })
    expect(host.kernel.routesAsText('ipv6')).toEqual(['blackhole fd00:5:0:7::/64 metric 4294967295'])
  })

  it("removes a successor's blackhole route later if the kernel does not answer", async () => {
    const host = fakeHost(MODERN)
    const firewall = createFirewall('iptables', { ...host.options({ masq: false, forward: false }), blackhole: false })
    await firewall.raise(SUBNET)
    host.kernel.addRoute('ipv4', { type: 'blackhole', destination: '10.42.7.0/24', metric: 4294967295 })
    host.kernel.refuses = () => 'ETIMEDOUT'
    firewall.lookAgain?.()
    expect(await failuresOf(firewall.ensure(SUBNET))).toHaveLength(1)
    host.kernel.refuses = () => undefined
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.kernel.routesAsText()).toEqual([])
  })

  it('logs if a blackhole route of an earlier run stays, and reports the failure until the route is gone', async () => {
    const host = fakeHost(MODERN)
    host.kernel.addRoute('ipv4', { type: 'blackhole', destination: '10.42.5.0/24', metric: 4294967295 })
    host.kernel.refuses = () => 'ENOBUFS'
    const firewall = createFirewall('iptables', { ...host.options({ masq: false, forward: false }), blackhole: false })
    await firewall.raise(SUBNET)
    const failure = expect.stringMatching(
      /Failed to remove blackhole route, the kernel refused `ip route del blackhole 10/,
    ) as string
    expect(host.lines.at(-1)).toEqual(failure)
    expect(await failuresOf(firewall.ensure(SUBNET))).toEqual([failure])
    host.kernel.refuses = () => undefined
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.kernel.routesAsText()).toEqual([])
  })

  it('logs at the start that the blackhole route failed, and reports the failure from then on', async () => {
    const host = fakeHost(MODERN)
    host.kernel.refuses = () => 'ENOBUFS'
    const firewall = createFirewall('iptables', { ...host.options({ masq: false, forward: false }), blackhole: true })
    await firewall.raise(SUBNET)
    const failure = expect.stringMatching(
      /Failed to setup blackhole route, the kernel refused `ip route add blackhole 10\.42\.7\.0\/24 /,
    ) as string
    expect(host.lines.at(-1)).toEqual(failure)
    expect(await failuresOf(firewall.ensure(SUBNET))).toEqual([failure])
    host.kernel.refuses = () => undefined
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.kernel.routesAsText()).toEqual(['blackhole 10.42.7.0/24 metric 4294967295'])
    host.kernel.act({ kind: 'delete route', destination: SUBNET.ipv4, type: 'blackhole' })
    expect(await firewall.ensure(SUBNET)).toEqual({
      repaired: ['the blackhole route of 10.42.7.0/24 was gone'],
      failures: [],
    })
  })
})

describe('a check of the rules', () => {
  const HEADER = '# Generated by iptables-save v1.8.9 (nf_tables) on Fri Nov 27 00:00:00 2026\n'
  const NF_TABLES = { make: createIptables, answers: { ...MODERN, 'iptables-save': HEADER }, table: 'iptables nat' }
  const LEGACY = { ...NF_TABLES, answers: { ...MODERN, 'iptables --version': 'iptables v1.8.9 (legacy)\n' } }
  const NFT = { make: createNftables, answers: { nft: '' }, table: 'ip' }
  const OTHER_SUBNET = { ipv4: parseIpv4Net('10.42.8.0/24')! }

  /** A host whose rules are set and checked, and whose generation rises with each transaction. */
  async function checkedHost({ make, answers, table }: typeof NF_TABLES | typeof NFT, wish: Partial<FirewallOptions>) {
    const host = fakeHost(answers)
    host.kernel.nft = [
      { family: 'ip', name: 'nat', objects: 7 },
      { family: 'ip', name: 'flannel-ipv4', objects: 2 },
    ]
    host.kernel.generation = 40
    const commit = (): void => void (host.kernel.generation = (host.kernel.generation ?? 0) + 1)
    const { run, ...rest } = host.options(wish)
    /** Called while a program lists rules. */
    const listing = { during: (): void => {} }
    const counting: Run = async (file, args, options) => {
      const printed = await run(file, args, options)
      if (file.endsWith('-restore') || args[0] === '-f') commit()
      else listing.during()
      return printed
    }
    const firewall = make({ ...rest, run: counting })
    await firewall.raise(SUBNET)
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    /** Returns the number of programs that one check starts. */
    const programs = async (subnet = SUBNET): Promise<number> => {
      host.calls.length = 0
      expect((await firewall.ensure(subnet)).failures).toEqual([])
      return host.calls.length
    }
    const flush = (): void => {
      host.tables.set(table, table === 'ip' ? 'table ip flannel-ipv4 {\n}\n' : '*nat\nCOMMIT\n')
      commit()
    }
    return { host, firewall, programs, commit, flush, listing }
  }

  it.each([
    ['iptables-nft', NF_TABLES],
    ['nft', NFT],
  ])('with %s starts no program unless the generation or the subnet has changed', async (_tool, kind) => {
    const { firewall, programs, commit, flush } = await checkedHost(kind, {})
    expect([await programs(), await programs()]).toEqual([0, 0])
    commit() // another program changes its own rules
    expect([await programs(), await programs()]).toEqual([1, 0])
    flush()
    expect((await firewall.ensure(SUBNET)).repaired).toHaveLength(1)
    expect([await programs(), await programs()]).toEqual([1, 0])
    expect(await programs(OTHER_SUBNET)).toBeGreaterThan(1)
  })

  it.each([
    ['iptables-nft', NF_TABLES],
    ['nft', NFT],
  ])('with %s notices a change during the previous check', async (_tool, kind) => {
    const { firewall, programs, commit, flush, listing } = await checkedHost(kind, {})
    listing.during = () => {
      listing.during = () => {}
      flush()
    }
    commit()
    expect(await programs()).toBe(1)
    expect((await firewall.ensure(SUBNET)).repaired).toHaveLength(1)
  })

  it.each([
    ['legacy iptables, whose rules have no generation', LEGACY, 40],
    ['a kernel that refuses to read the generation', NF_TABLES, undefined],
  ])('with %s starts a program each time', async (_why, kind, generation) => {
    const { host, programs } = await checkedHost(kind, {})
    host.kernel.generation = generation
    await programs()
    expect([await programs(), await programs()]).toEqual([1, 1])
  })

  it('is repeated after a failure', async () => {
    const { host, firewall, programs, commit } = await checkedHost(NFT, {})
    host.answers['nft'] = late()
    commit()
    expect((await firewall.ensure(SUBNET)).failures).toHaveLength(1)
    host.answers['nft'] = ''
    expect([await programs(), await programs()]).toEqual([1, 0])
  })

  it('is repeated if the predecessor ends meanwhile', async () => {
    const { firewall, programs, commit, listing } = await checkedHost(NF_TABLES, {})
    listing.during = () => firewall.lookAgain?.()
    commit()
    await programs()
    listing.during = () => {}
    expect(await programs()).toBeGreaterThan(0)
    expect(await programs()).toBe(0)
  })

  it('does not need the tool of a family that is off', async () => {
    const { programs } = await checkedHost(NF_TABLES, { previous: BOTH })
    expect(await programs()).toBe(0)
  })
})

describe('both families', () => {
  /** Returns the programs that were run whose name contains a family. */
  const programs = (host: ReturnType<typeof fakeHost>): string[] =>
    [...new Set(host.calls.map(({ file }) => file.replace(/-(save|restore|legacy|nft).*/, '')))].filter((name) =>
      name.endsWith('tables'),
    )

  it('with iptables are logged like flanneld, and each has its rules set by its own program', async () => {
    const host = fakeHost({ ...MODERN, ...MODERN_6 })
    const firewall = createIptables(host.options(BOTH))
    await firewall.raise(BOTH.subnet)
    const recycled = (now: string, none: string): string =>
      `I Current network or subnet (${now}) is not equal to previous one (${none}, ${none}), trying to recycle old iptables rules`
    expect(host.lines.slice(3)).toEqual([
      recycled('10.42.0.0/16, 10.42.7.0/24', '0.0.0.0/0'),
      'I Setting up masking rules',
      'I bootstrap done',
      recycled('fd00:42::/48, fd00:42:0:7::/64', '::/0'),
      'I Setting up masking rules for IPv6',
      'I bootstrap done',
      'I Changing default FORWARD chain policy to ACCEPT',
      'I bootstrap done',
      'I IPv6: Changing default FORWARD chain policy to ACCEPT',
      'I bootstrap done',
    ])
    const [four, six] = [host.inputs('iptables-restore').join(''), host.inputs('ip6tables-restore').join('')]
    expect(four).not.toMatch(/fd00|ff00/)
    expect(six).not.toMatch(/10\.42|224\./)
    expect(six).toContain('-A FLANNEL-POSTRTG -s fd00:42::/48 ! -d ff00::/8 ')
    expect(six).toContain('-A FLANNEL-FWD -d fd00:42::/48 ')
    expect(await firewall.ensure(BOTH.subnet)).toEqual(fine())
    host.answers['ip6tables-save -t filter'] = '*filter\nCOMMIT\n'
    expect(await firewall.ensure(BOTH.subnet)).toEqual(fine('rules of FLANNEL-FWD (IPv6)'))
  })

  it.each([
    ['IPv4', NETWORK, SUBNET, ['iptables']],
    ['IPv6', NETWORK_6, SUBNET_6, ['ip6tables']],
  ] as const)('of which only %s is on ask nothing of the other', async (_, network, subnet, expected) => {
    const host = fakeHost({ ...MODERN, ...MODERN_6 })
    const firewall = createIptables(host.options({ network }))
    await firewall.raise(subnet)
    expect(await firewall.ensure(subnet)).toEqual(fine())
    expect(programs(host)).toEqual(expected)
    expect(host.lines.filter((line) => !/^[IW]/.test(line))).toEqual([])
  })

  it('checks br_netfilter for each family with rules', async () => {
    const file = (name: string): string => `/proc/sys/net/bridge/bridge-nf-call-${name}`
    for (const name of ['iptables', 'ip6tables']) hidden.add(file(name))
    const warned = async (wish: Partial<FirewallOptions>, subnet: Nets): Promise<string[]> => {
      const host = fakeHost({ ...MODERN, ...MODERN_6 })
      await createIptables(host.options(wish)).raise(subnet)
      return host.lines.filter((line) => line.startsWith('W'))
    }
    const missed = (name: string) =>
      expect.stringContaining(
        `W Failed to check br_netfilter: stat ${file(name)}: no such file or directory; `,
      ) as string
    expect(await warned(BOTH, BOTH.subnet)).toEqual([missed('iptables'), missed('ip6tables')])
    expect(await warned({ network: NETWORK, previous: BOTH }, SUBNET)).toEqual([missed('iptables')])
    expect(await warned({ network: NETWORK_6 }, SUBNET_6)).toEqual([missed('ip6tables')])
    expect(await warned({ ...BOTH, masq: false, forward: false }, BOTH.subnet)).toEqual([])
    hidden.delete(file('iptables'))
    expect(await warned(BOTH, BOTH.subnet)).toEqual([missed('ip6tables')])
  })

  it('lose the rules of an earlier run once if one family is off now', async () => {
    const left =
      '*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\n' +
      '-A FLANNEL-POSTRTG -s fd00:42::/48 ! -d ff00::/8 -m comment --comment "flanneld masq" -j MASQUERADE\nCOMMIT\n' +
      '*filter\n:FLANNEL-FWD - [0:0]\n-A FLANNEL-FWD -s fd00:9::/48 -m comment --comment "flanneld forward" -j ACCEPT\nCOMMIT\n'
    const host = fakeHost({ ...MODERN, ...MODERN_6, 'ip6tables-save': left })
    const firewall = createIptables(host.options({ previous: BOTH }))
    await firewall.raise(SUBNET)
    // Another daemon owns the second chain.
    expect(host.inputs('ip6tables-restore')).toEqual([
      '*nat\n-D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG\n' +
        '-F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n',
    ])
    expect(host.lines.filter((line) => /IPv6|::/.test(line))).toEqual([])
    const called = host.calls.filter(({ file }) => file.startsWith('ip6tables')).length
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.calls.filter(({ file }) => file.startsWith('ip6tables'))).toHaveLength(called)
  })

  it('do not need the tool of a family that is off now', async () => {
    const host = fakeHost(MODERN)
    const firewall = createIptables(host.options({ previous: BOTH }))
    await firewall.raise(SUBNET)
    expect(host.lines.filter((line) => line.startsWith('E'))).toEqual([])
    host.answers['iptables-save'] = host.inputs('iptables-restore').join('')
    expect((await firewall.ensure(SUBNET)).failures).toEqual([])
    expect(host.calls.filter(({ file }) => file.startsWith('ip6tables'))).toHaveLength(2)
  })

  it('keep their rules if the tool disappears', async () => {
    const host = fakeHost({ ...MODERN, ...MODERN_6 })
    const firewall = createIptables(host.options({ network: BOTH.network }))
    await firewall.raise(BOTH.subnet)
    for (const program of ['ip6tables', 'ip6tables-save']) delete host.answers[program]
    expect(await failuresOf(firewall.ensure(SUBNET))).toEqual(
      Array(2).fill('Failed to ensure iptables rules: ip6tables-save is not installed'),
    )
  })

  it('have rules of the family with a subnet, and of the other as soon as it has one', async () => {
    const host = fakeHost({ ...MODERN, ...MODERN_6 })
    const firewall = createIptables(host.options({ network: BOTH.network }))
    await firewall.raise(SUBNET)
    expect(host.inputs('ip6tables-restore')).toEqual([])
    expect(await firewall.ensure(BOTH.subnet)).toEqual(fine())
    expect(host.inputs('ip6tables-restore')).toHaveLength(2)
    host.answers['ip6tables-save'] = host.inputs('ip6tables-restore').join('')
    expect(await firewall.ensure(SUBNET)).toEqual(fine())
    expect(host.inputs('ip6tables-restore').slice(2).join('')).toMatch(/-X FLANNEL-POSTRTG\n[^]*-X FLANNEL-FWD\n/)
  })

  it.each([
    ['ip6tables', MODERN, MODERN_6, 'IP6Tables', 'rules of FLANNEL-FWD'],
    ['iptables', MODERN_6, MODERN, 'IPTables', 'rules of FLANNEL-FWD (IPv6)'],
  ])(
    'have rules of one family without %s, which is logged and tried again',
    async (program, works, later, tool, repaired) => {
      const host = fakeHost({ ...works, nft: '' })
      const firewall = createIptables(host.options(BOTH))
      await firewall.raise(BOTH.subnet)
      expect(host.lines.filter((line) => line.startsWith('E'))).toEqual(
        Array(2).fill(
          `E Failed to setup ${tool}. iptables binary was not found: ${program} is not installed; install it`,
        ),
      )
      const other = program === 'iptables' ? 'ip6tables' : 'iptables'
      expect(host.inputs(`${other}-restore`)).toHaveLength(2)
      host.answers[`${other}-save -t filter`] = '*filter\nCOMMIT\n'
      const { repaired: done, failures } = await firewall.ensure(BOTH.subnet)
      expect(done).toEqual([repaired])
      expect(failures.map(({ message }) => message)).toEqual(
        Array(2).fill(`Failed to ensure iptables rules: ${program} is not installed`),
      )
      Object.assign(host.answers, later)
      expect((await firewall.ensure(BOTH.subnet)).failures).toEqual([])
      expect(host.inputs(`${program}-restore`)).toHaveLength(2)
    },
  )

  it.each([
    ['IPv4', { ipv4: BOTH.network.ipv4 }, { ipv4: BOTH.subnet.ipv4 }, 'table ip6 '],
    ['IPv6', { ipv6: BOTH.network.ipv6 }, { ipv6: BOTH.subnet.ipv6 }, 'table ip '],
  ])('with nft of %s alone are set if the kernel lacks the other family', async (_family, network, subnet, foreign) => {
    const host = fakeHost({ nft: '' })
    const options = host.options({ ...BOTH, network })
    const run: Run = async (file, args, how) => {
      if (how?.input?.includes(`add ${foreign}`)) throw refused('Address family not supported by protocol')
      return options.run(file, args, how)
    }
    const firewall = createNftables({ ...options, run })
    await firewall.raise(subnet)
    expect(host.inputs('nft').filter((input) => input.includes('chain postrtg'))).toHaveLength(1)
    expect(await firewall.ensure(subnet)).toEqual(fine())
  })

  it('with nft are logged like flanneld, with one transaction each', async () => {
    const host = fakeHost({ nft: '' })
    const firewall = createNftables(host.options(BOTH))
    await firewall.raise(BOTH.subnet)
    expect(host.lines.slice(3)).toEqual([
      'I nftables: setting up masking rules (ipv4)',
      'I nftables: setting up masking rules (ipv6)',
      'I Changing default FORWARD chain policy to ACCEPT',
      'I Changing default FORWARD chain policy to ACCEPT (ipv6)',
    ])
    const [four = '', six = '', ...more] = host.inputs('nft').filter((input) => input.includes('chain postrtg'))
    expect(more).toEqual([])
    expect(four).not.toMatch(/ip6|fd00/)
    expect(six).not.toMatch(/ip |10\.42/)
    expect(six).toContain('ip6 saddr fd00:42::/48 ip6 daddr != ff00::/8 masquerade fully-random\n')
    expect(await firewall.ensure(BOTH.subnet)).toEqual(fine())
    host.answers['nft -s list table ip6 flannel-ipv6'] = refused('No such file or directory')
    expect(await firewall.ensure(BOTH.subnet)).toEqual(fine('the table flannel-ipv6'))
  })

  it.each([
    ['IPv4', NETWORK, SUBNET, ['ip', 'ip6']],
    ['IPv6', NETWORK_6, SUBNET_6, ['ip6', 'ip']],
  ] as const)('with nft have a table each if only %s is on', async (_, network, subnet, [own, other]) => {
    const host = fakeHost({ nft: '' })
    await createNftables(host.options({ network })).raise(subnet)
    const [input = '', ...more] = host.inputs('nft').filter((text) => text.includes('chain postrtg'))
    expect(more).toEqual([])
    expect(input).toMatch(new RegExp(`^add table ${own} flannel-.*\n[^]*\nadd table ${other} flannel-.*\n$`))
    expect(input.includes(`chain ${other} `)).toBe(false)
    expect(programs(host)).toEqual(['iptables', 'ip6tables']) // checked for rules to remove
  })

  it('with nft lose the rules of an earlier run if one family is off now, and no rules of others', async () => {
    const theirs = 'ip6 saddr fd00:9::/48 accept'
    const left = `table ip6 flannel-ipv6 {\n\tchain forward {\n\t\tip6 saddr fd00:42::/48 accept\n\t\t${theirs}\n\t}\n}\n`
    const host = fakeHost({ nft: '', 'nft -s list table ip6 flannel-ipv6': left })
    await createNftables(host.options({ previous: BOTH })).raise(SUBNET)
    const six = host.inputs('nft').find((input) => input.includes('table ip6'))!
    expect(six).toContain('\ndelete chain ip6 flannel-ipv6 forward\n')
    expect(six).toContain(`    ${theirs}\n`)
    expect(six).not.toMatch(/fd00:42|10\.42|chain postrtg \{/)
  })

  /** A host whose nft accepts no tables of these families. */
  function withoutNat(host: ReturnType<typeof fakeHost>, ...families: readonly string[]): FirewallOptions {
    const { run, ...rest } = host.options(BOTH)
    const picky: Run = (file, args, more) =>
      families.some((family) => more?.input?.startsWith(`add table ${family} flannel`)) &&
      args[0] === '-f' &&
      !more?.input?.includes('delete table')
        ? Promise.reject(refused(`no ${families.join(', ')}`))
        : run(file, args, more)
    return { ...rest, run: picky }
  }

  it.each([
    ['ip', 'ip6', 'fd00:42::/48'],
    ['ip6', 'ip', '10.42.0.0/16'],
  ])(
    'with nft have rules of one family if the kernel has no nat of %s, which is logged and tried again',
    async (none, other, network) => {
      const host = fakeHost({ nft: '' })
      const firewall = createNftables(withoutNat(host, none))
      await firewall.raise(BOTH.subnet)
      const failure = `nftables: couldn't setup masq rules: \`x\` failed: no ${none}`
      expect(host.lines.filter((line) => /^[EW]/.test(line))).toEqual([`E Failed to setup masq rules, ${failure}`])
      const set = host.inputs('nft').filter((input) => input.includes('chain postrtg'))
      expect(set).toHaveLength(1)
      expect(set[0]).toContain(` saddr ${network} `)
      host.answers[`nft -s list table ${other} flannel-ipv${other === 'ip' ? 4 : 6}`] = ''
      const { repaired, failures } = await firewall.ensure(BOTH.subnet)
      expect(repaired).toEqual([`the table flannel-ipv${other === 'ip' ? 4 : 6}`])
      expect(failures.map(({ message }) => message)).toEqual([failure])
    },
  )

  it('with nft end the start like flanneld if none can be masqueraded, unless only forwarding is wanted', async () => {
    const host = fakeHost({ nft: '' })
    await expect(createNftables(withoutNat(host, 'ip', 'ip6')).raise(BOTH.subnet)).rejects.toThrow(
      "Failed to setup masq rules, nftables: couldn't setup masq rules: ",
    )
    const options = { ...withoutNat(host, 'ip', 'ip6'), masq: false }
    await createNftables(options).raise(BOTH.subnet)
    expect(host.lines.filter((line) => line.startsWith("E nftables: couldn't setup forward rules"))).toHaveLength(2)
  })

  it('with nft end the start if the only enabled family fails', async () => {
    const host = fakeHost({ nft: '' })
    const options = { ...withoutNat(host, 'ip'), network: NETWORK, previous: BOTH }
    await expect(createNftables(options).raise(SUBNET)).rejects.toThrow('no ip')
  })

  it('have a blackhole route each, and the failure of one does not affect the other', async () => {
    const host = fakeHost({ ...MODERN, ...MODERN_6 })
    host.kernel.refuses = (words) => (words.includes('10.42.7.0/24') ? 'ENOBUFS' : undefined)
    const wish = { ...BOTH, masq: false, forward: false, previous: { network: {}, subnet: {} } }
    const firewall = createFirewall('iptables', { ...host.options(wish), blackhole: true })
    await firewall.raise(BOTH.subnet)
    expect(host.lines.filter((line) => line.startsWith('E'))).toEqual([
      expect.stringContaining(
        'E Failed to setup blackhole route, the kernel refused `ip route add blackhole 10.42.7.0/24',
      ),
    ])
    expect(host.kernel.routesAsText('ipv4')).toEqual([])
    expect(host.kernel.routesAsText('ipv6')).toEqual(['blackhole fd00:42:0:7::/64 metric 4294967295'])
  })

  it('lose the blackhole route of a family that is off now', async () => {
    const host = fakeHost({ ...MODERN, ...MODERN_6 })
    host.kernel.addRoute('ipv6', { type: 'blackhole', destination: 'fd00:42:0:7::/64', metric: 4294967295 })
    host.kernel.addRoute('ipv6', { type: 'blackhole', destination: 'fd00:42:0:8::/64' })
    const firewall = createFirewall('iptables', { ...host.options({ previous: BOTH }), blackhole: true })
    await firewall.raise(SUBNET)
    expect(host.kernel.routesAsText('ipv6')).toEqual(['blackhole fd00:42:0:8::/64'])
  })
})
