// options.test.ts - flanneld's flags and weft's own flags, their environment variables, and their valid values.

import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { applyEnvironment, parseFlags, type FlagValue } from '../../src/base/go-flags.ts'
import { Secret, secretUrls } from '../../src/base/secret.ts'
import {
  checkFeatures,
  checkMargin,
  checkOptions,
  cutOptions,
  eventsFile,
  FLAGS,
  FLANNEL_FLAGS,
  interfaceWishes,
  storeKindOf,
  WEFT_FLAGS,
  WITHOUT_EFFECT,
} from '../../src/options.ts'
import { usage } from '../../src/weftd.ts'

const parse = (...args: string[]) => parseFlags(FLAGS, args)
const bad = (): void => {}

/** flanneld's flags as its main.go and klog register them: name, variable, default. */
const UPSTREAM: readonly (readonly [name: string, variable: string, fallback: FlagValue])[] = [
  ['etcd-endpoints', 'FLANNELD_ETCD_ENDPOINTS', secretUrls('http://127.0.0.1:4001,http://127.0.0.1:2379')],
  ['etcd-prefix', 'FLANNELD_ETCD_PREFIX', '/coreos.com/network'],
  ['etcd-keyfile', 'FLANNELD_ETCD_KEYFILE', ''],
  ['etcd-certfile', 'FLANNELD_ETCD_CERTFILE', ''],
  ['etcd-cafile', 'FLANNELD_ETCD_CAFILE', ''],
  ['etcd-username', 'FLANNELD_ETCD_USERNAME', ''],
  ['etcd-password', 'FLANNELD_ETCD_PASSWORD', new Secret('')],
  ['iface', 'FLANNELD_IFACE', []],
  ['iface-regex', 'FLANNELD_IFACE_REGEX', []],
  ['iface-can-reach', 'FLANNELD_IFACE_CAN_REACH', ''],
  ['subnet-file', 'FLANNELD_SUBNET_FILE', '/run/flannel/subnet.env'],
  ['public-ip', 'FLANNELD_PUBLIC_IP', ''],
  ['public-ipv6', 'FLANNELD_PUBLIC_IPV6', ''],
  ['subnet-lease-renew-margin', 'FLANNELD_SUBNET_LEASE_RENEW_MARGIN', 60],
  ['ip-masq', 'FLANNELD_IP_MASQ', false],
  ['ip-masq-fully-random-disable', 'FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE', false],
  ['kube-subnet-mgr', 'FLANNELD_KUBE_SUBNET_MGR', false],
  ['kube-api-url', 'FLANNELD_KUBE_API_URL', secretUrls('')],
  ['kube-annotation-prefix', 'FLANNELD_KUBE_ANNOTATION_PREFIX', 'flannel.alpha.coreos.com'],
  ['kubeconfig-file', 'FLANNELD_KUBECONFIG_FILE', ''],
  ['version', 'FLANNELD_VERSION', false],
  ['healthz-ip', 'FLANNELD_HEALTHZ_IP', '0.0.0.0'],
  ['healthz-port', 'FLANNELD_HEALTHZ_PORT', 0],
  ['iptables-resync', 'FLANNELD_IPTABLES_RESYNC', 5],
  ['iptables-forward-rules', 'FLANNELD_IPTABLES_FORWARD_RULES', true],
  ['ip-blackhole-route', 'FLANNELD_IP_BLACKHOLE_ROUTE', false],
  ['net-config-path', 'FLANNELD_NET_CONFIG_PATH', '/etc/kube-flannel/net-conf.json'],
  ['set-node-network-unavailable', 'FLANNELD_SET_NODE_NETWORK_UNAVAILABLE', true],
  ['v', 'FLANNELD_V', 0],
  ['vmodule', 'FLANNELD_VMODULE', ''],
  ['log_backtrace_at', 'FLANNELD_LOG_BACKTRACE_AT', ''],
]

/** weft's own, which take variables of the same form. */
const OURS: typeof UPSTREAM = [
  ['lease-dir', 'FLANNELD_LEASE_DIR', ''],
  ['iface-wait', 'FLANNELD_IFACE_WAIT', 120],
  ['fail-static-hold', 'FLANNELD_FAIL_STATIC_HOLD', 30],
  ['engine', 'FLANNELD_ENGINE', 'native'],
  ['workers', 'FLANNELD_WORKERS', 8],
  ['nice', 'FLANNELD_NICE', -5],
  ['poll-us', 'FLANNELD_POLL_US', 50],
  ['persist', 'FLANNELD_PERSIST', true],
  ['leave', 'FLANNELD_LEAVE', false],
  ['probe-interval', 'FLANNELD_PROBE_INTERVAL', 10],
  ['status-socket', 'FLANNELD_STATUS_SOCKET', '/run/weft/weftd.sock'],
  ['status-ip', 'FLANNELD_STATUS_IP', '127.0.0.1'],
  ['status-page', 'FLANNELD_STATUS_PAGE', true],
  ['status-network', 'FLANNELD_STATUS_NETWORK', 0],
  ['status-token-file', 'FLANNELD_STATUS_TOKEN_FILE', ''],
  ['without', 'FLANNELD_WITHOUT', []],
]

const TRUE = ['1', 't', 'T', 'true', 'TRUE', 'True']
const FALSE = ['0', 'f', 'F', 'false', 'FALSE', 'False']
const NO_BOOLEAN = ['', 'yes', 'on', 'tRUE', ' true', '2', '-1']
const INTEGERS: readonly (readonly [string, number])[] = [
  ...([
    ['0', 0],
    ['-3', -3],
    ['+3', 3],
    ['0x10', 16],
    ['0X1f', 31],
    ['0o17', 15],
    ['017', 15],
  ] as const),
  ...([
    ['0b11', 3],
    ['1_440', 1440],
  ] as const),
]
const NO_INTEGER = ['', 'x', '1.5', '08', '1e3', ' 1', '1 ', '0x', '1__0', '9223372036854775808', '5s']

describe("flanneld's flags, and ours", () => {
  const nameOf = (name: string) => name as keyof typeof FLAGS
  /** A text that is not the default, what it reads as, and another text. */
  const samples = (fallback: FlagValue): { text: string; value: FlagValue; other: string; otherValue: FlagValue } => {
    if (typeof fallback === 'boolean')
      return { text: String(!fallback), value: !fallback, other: String(fallback), otherValue: fallback }
    if (typeof fallback === 'number') return { text: '0x4D', value: 77, other: '5', otherValue: 5 }
    if (fallback instanceof Secret)
      return { text: 'a,b', value: new Secret('a,b'), other: 'c', otherValue: new Secret('c') }
    if (typeof fallback === 'string') return { text: 'a,b', value: 'a,b', other: 'c', otherValue: 'c' }
    return { text: 'a,b', value: ['a,b'], other: 'c', otherValue: ['c'] }
  }

  it('are all defined, and no others', () => {
    expect(Object.keys(FLANNEL_FLAGS).toSorted()).toEqual(UPSTREAM.map(([name]) => name).toSorted())
    expect(Object.keys(WEFT_FLAGS).toSorted()).toEqual(OURS.map(([name]) => name).toSorted())
  })

  it.each([...UPSTREAM, ...OURS])(
    '-%s as a flag and as %s: every form that Go reads, and none that it does not',
    (name, variable, fallback) => {
      const complaints: string[] = []
      const byFlag = (text: string): FlagValue => parse(`-${name}=${text}`).options[nameOf(name)]
      const byVariable = (text: string): FlagValue =>
        applyEnvironment(FLAGS, parse(), 'FLANNELD', { [variable]: text }, (message) => complaints.push(message))[
          nameOf(name)
        ]
      const takes = (text: string, value: FlagValue): void => {
        expect([byFlag(text), byVariable(text)], text).toEqual([value, text === '' ? fallback : value])
      }
      const refuses = (text: string): void => {
        expect(() => byFlag(text), text).toThrow(`invalid value "${text}" for flag -${name}: it takes`)
        complaints.length = 0
        expect(byVariable(text)).toEqual(fallback)
        const empty = text === '' // which is unset
        expect(complaints).toEqual(empty ? [] : [expect.stringMatching(`^invalid value .* for ${variable}: it takes`)])
      }
      if (typeof fallback === 'boolean') {
        for (const text of TRUE) takes(text, true)
        for (const text of FALSE) takes(text, false)
        for (const text of NO_BOOLEAN) refuses(text)
        expect(parse(`--${name}`).options[nameOf(name)]).toBe(true)
        // A separate word is not the value of the flag; it ends the flags.
        expect(parse(`-${name}`, 'false', '-v=3')).toMatchObject({
          options: { [name]: true, v: 0 },
          rest: ['false', '-v=3'],
        })
      } else if (typeof fallback === 'number') {
        for (const [text, value] of INTEGERS) takes(text, value)
        for (const text of NO_INTEGER) refuses(text)
      } else {
        const list = Array.isArray(fallback)
        const one = (text: string): FlagValue => (fallback instanceof Secret ? new Secret(text) : text)
        for (const text of ['', 'a', 'a,b', ' a ', 'a=b', '-x', '"a"']) takes(text, list ? [text] : one(text))
        const twice = parse(`-${name}=a`, `--${name}`, 'b').options[nameOf(name)]
        expect(twice).toEqual(list ? ['a', 'b'] : one('b'))
      }
      if (typeof fallback !== 'boolean') expect(() => parse(`-${name}`)).toThrow(`flag needs an argument: -${name}`)
    },
  )

  it.each([...UPSTREAM, ...OURS])('-%s: the default, four ways to give it, and %s', (name, variable, fallback) => {
    const { text, value, other, otherValue } = samples(fallback)
    expect(parse().options[nameOf(name)]).toEqual(fallback)
    const ways = [[`-${name}=${text}`], [`--${name}=${text}`]]
    if (typeof fallback !== 'boolean') ways.push([`-${name}`, text], [`--${name}`, text])
    for (const way of ways) expect(parse(...way).options[nameOf(name)]).toEqual(value)

    const from = (environment: Record<string, string>, ...args: string[]): FlagValue =>
      applyEnvironment(FLAGS, parse(...args), 'FLANNELD', environment, bad)[nameOf(name)]
    expect(from({ [variable]: text })).toEqual(value)
    expect(from({ [variable]: '' })).toEqual(fallback)
    expect(from({ [variable]: text }, `-${name}=${other}`)).toEqual(otherValue)
  })

  it('are printed without the secrets, and without the users in URLs', () => {
    const { options } = parse(
      '--etcd-password=sesame',
      '--etcd-endpoints',
      'http://jo:sesame@h:1,jo:sesame@h:2',
      '--kube-api-url=https://jo:sesame@h',
    )
    expect(inspect(options) + JSON.stringify(options)).not.toContain('sesame')
    expect(String(options['etcd-endpoints'])).toBe('http://h:1,h:2')
    expect(options['kube-api-url'].reveal()).toBe('https://jo:sesame@h')
  })

  it("have the usage text that Go's PrintDefaults makes of them, byte for byte", () => {
    const words: Readonly<Record<string, string>> = { v: ' value', vmodule: ' value', log_backtrace_at: ' value' } // klog's types
    const shape = (table: typeof UPSTREAM, help: Readonly<Record<string, { help: string }>>): string =>
      table
        .toSorted(([a], [b]) => (a < b ? -1 : 1))
        .map(([name, , given]) => {
          const fallback = given instanceof Secret ? given.reveal() : given
          const type = { boolean: '', number: ' int', string: ' string', object: ' value' }[typeof fallback as string]
          const zero = [false, 0, ''].includes(fallback as string) || typeof fallback === 'object'
          const quoted = typeof fallback === 'string' ? `"${fallback}"` : String(fallback)
          return `  -${name}${words[name] ?? type}\n    \t${help[name]!.help}${zero ? '' : ` (default ${quoted})`}\n`
        })
        .join('')
    expect(usage('/opt/bin/flanneld')).toBe(
      `Usage: /opt/bin/flanneld [OPTION]...\n${shape(UPSTREAM, FLANNEL_FLAGS)}weft's own:\n${shape(OURS, WEFT_FLAGS)}`,
    )
  })
})

describe('checkOptions and checkMargin', () => {
  function check(...args: string[]): void {
    const { options } = parse(...args)
    checkOptions(options)
    checkMargin(options)
  }

  it.each([
    [['-subnet-lease-renew-margin=0'], 'out of acceptable range'],
    [['-subnet-lease-renew-margin=1440'], 'out of acceptable range'],
    [['-engine=warp'], 'unknown engine: warp'],
    [['-workers=0'], '--workers is 0'],
    [['-workers=17'], '--workers is 17'],
    [['-nice=-21'], '--nice is -21'],
    [['-nice=20'], '--nice is 20'],
    [['-status-ip=node1'], '--status-ip is "node1"'],
    [['-status-ip=fe80::1%eth0'], '--status-ip is "fe80::1%eth0"'],
    [['-healthz-port=65536'], '--healthz-port is 65536'],
    [['-status-network=-1'], '--status-network is -1'],
    [['-status-network=65536'], '--status-network is 65536'],
    [['-status-token-file=/token'], '--status-token-file is given without --status-network'],
    [['-probe-interval=-1'], '--probe-interval is -1'],
    [['-probe-interval=3601'], '--probe-interval is 3601'],
    [['-poll-us=-1'], '--poll-us is -1'],
    [['-poll-us=1001'], '--poll-us is 1001'],
    [['-iface-wait=-1'], '--iface-wait is -1'],
    [['-kube-subnet-mgr', '-lease-dir=/leases'], '--lease-dir and --kube-subnet-mgr exclude each other'],
  ])('refuses %j, and says what it may be', (args, message) => {
    expect(() => check(...args)).toThrow(
      expect.objectContaining({
        code: 'USAGE',
        message: expect.stringContaining(message),
        remedy: expect.stringMatching(
          /^((give|add) .*\d|choose one of native, dgram$|leave one of the two flags out$)/,
        ),
      }),
    )
  })

  it.each([
    [['-subnet-lease-renew-margin=1']],
    [['-subnet-lease-renew-margin=1439', '-engine=dgram', '-workers=16']],
    [['-nice=-20', '-poll-us=0']],
    [['-nice=19', '-poll-us=1000']],
    [['-workers=1', '-iface-wait=0', '-probe-interval=0', '-engine=native']],
    [['-status-network=65535', '-status-token-file=/token']],
    [['-probe-interval=3600', '-status-ip=']],
    [['-status-ip=::1', '-kube-subnet-mgr']],
    [['-status-ip=0.0.0.0', '-lease-dir=/leases', '-healthz-port=65535']],
  ])('takes %j', (args) => check(...args))
})

describe('checkFeatures', () => {
  const features = ['tun-tso', 'udp-gso']
  const check = (...args: string[]) => checkFeatures(parse(...args).options, features)

  it.each([
    [[]],
    [['-without=udp-gso']],
    [['-without=udp-gso', '-without=tun-tso', '-workers=2']],
    [['-engine=dgram']],
  ])('takes %j', (args) => check(...args))

  it.each([
    [['-without=magic'], '--without magic: unknown feature', 'choose from tun-tso, udp-gso'],
    [['-without=udp-gso', '-without=udp-gos'], '--without udp-gos: unknown feature', 'choose from'],
    [['-without=udp-gso,tun-tso'], '--without udp-gso,tun-tso: unknown feature', 'choose from'],
    [
      ['-engine=dgram', '-without=udp-gso'],
      '--without udp-gso: the engine dgram does not use kernel features',
      'leave --without out',
    ],
  ])('refuses %j', (args, message, remedy) => {
    expect(() => check(...args)).toThrow(
      expect.objectContaining({ code: 'USAGE', message, remedy: expect.stringContaining(remedy) }),
    )
  })
})

it('the store is a lease directory if the flags name one, else etcd', () => {
  expect([storeKindOf(parse().options), storeKindOf(parse('-lease-dir=/leases').options)]).toEqual([
    'etcd',
    'directory',
  ])
})

it("the peers' events are kept next to subnet.env", () => {
  expect(eventsFile(parse('-subnet-file=/run/weft/subnet.env').options)).toBe('/run/weft/subnet.env.events')
})

it('the flags set every requested property of the external interface', () => {
  expect(interfaceWishes(parse().options)).toEqual({
    ifaces: [],
    patterns: [],
    canReach: '',
    publicIp: { ipv4: '', ipv6: '' },
  })
  const { options } = parse(
    '-iface=eth0',
    '-iface=eth1',
    '-iface-regex=^eth',
    '-iface-can-reach=192.0.2.1',
    '-public-ip=198.51.100.1',
    '-public-ipv6=fc00::1',
  )
  expect(interfaceWishes(options)).toEqual({
    ifaces: ['eth0', 'eth1'],
    patterns: ['^eth'],
    canReach: '192.0.2.1',
    publicIp: { ipv4: '198.51.100.1', ipv6: 'fc00::1' },
  })
})

it('are divided so that each flag goes with its value to one part of the program, or belongs to weftd.ts', () => {
  const { options } = parse('--workers', '3', '--lease-dir', '/leases')
  const parts = cutOptions(options)
  const given = new Set<string>([
    'version',
    'v',
    'leave',
    ...WITHOUT_EFFECT,
    ...Object.values(parts).flatMap((part: object) => Object.keys(part)),
  ])
  expect([...given].toSorted()).toEqual(Object.keys(FLAGS).toSorted())
  expect([parts.engine.workers, parts.store['lease-dir'], parts.node['probe-interval']]).toEqual([3, '/leases', 10])
  for (const part of Object.values(parts)) expect(options).toMatchObject(part as object)
})
