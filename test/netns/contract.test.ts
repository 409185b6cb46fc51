// contract.test.ts - the interface that scripts and service managers know of flanneld: its log lines, in its order, and its exit codes.

import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { subnetOf } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'iptables', 'openssl')

let lab: Lab
let host: Host
let etcd: Etcd
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  host = lab.hosts[0]!
  etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
  await etcd.ctl('put', '/coreos.com/network/config', '{"Network":"10.5.0.0/16"}')
})
afterEach(async () => {
  await lab.close()
  await etcd.close()
})

const start = (on: Host, args: readonly string[] = [], env: Readonly<Record<string, string>> = {}): Daemon =>
  on.startDaemon({ args: ['--etcd-endpoints', etcd.endpoint, ...args], iface: [], env })

const HEADER = /^([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} [ \d]{6}\d [\w.-]+\/[\w.-]+:\d+\] /

/** Returns the log as level letters and messages; parts that differ between runs are replaced. */
function messages({ lines }: Daemon): string[] {
  return lines.map((line) => {
    expect(line).toMatch(HEADER)
    return line
      .replace(HEADER, '$1 ')
      .replace(/(CLI flags config: ).*/, '$1...')
      .replace(/(the native engine: ).*/, '$1...')
      .replaceAll(/10\.5\.\d+\.0\/24/g, 'SUBNET')
      .replace(/(Waiting for )\d+h\d+m\d+s( to renew lease)/, '$1TIME$2')
      .replaceAll(host.subnetFile, 'FILE')
  })
}

const BEFORE_THE_LEASE = [
  'I CLI flags config: ...',
  'I Installing signal handlers',
  'W no certificate provided: connecting to etcd with http. This is insecure',
  'I Created subnet manager: Etcd Local Manager with Previous Subnet: SUBNET',
  'I Found network config - Backend type: udp',
  'I Determining IP address of default interface',
  'I Using interface with name eth0 and address 192.168.77.1',
  'I Defaulting external address to interface address (192.168.77.1)',
]
const AFTER_THE_LEASE = [
  'I Forwarding between flannel0 and UDP 192.168.77.1:8285 with the native engine: ...', // a line of weft, not of flanneld
  'I Cleaning-up unused traffic manager rules',
  'I Cleaning-up nftables rules...',
  'I Starting flannel in iptables mode...',
  'I Setting up masking rules',
  'I bootstrap done',
  'I Changing default FORWARD chain policy to ACCEPT',
  'I bootstrap done',
  'I Wrote subnet file to FILE',
  'I flannel is ready',
  'I Running backend.',
  'I Watching for new subnet leases',
  'I Waiting for TIME to renew lease',
]
const AT_THE_END = [
  'I shutdownHandler sent cancel signal...',
  'I evts chan closed',
  'I Waiting for all goroutines to exit',
  'I Exiting cleanly...',
]

describe("flanneld's lines, in its order", () => {
  it('from the first start to the end, and at later starts that find the lease by the address and by subnet.env', async () => {
    const life = async (signal: NodeJS.Signals): Promise<string[]> => {
      // With --persist the next daemon would open the data path of the last one first.
      const daemon = start(host, ['--ip-masq', '--persist=false'])
      await daemon.line(/Waiting for .* to renew lease/)
      expect(await daemon.stop(signal)).toBe(0)
      return messages(daemon)
    }
    const first = BEFORE_THE_LEASE.map((line) => line.replace('Subnet: SUBNET', 'Subnet: None'))
    expect(await life('SIGTERM')).toEqual([
      ...first.slice(0, 2),
      'W no subnet found for key: FLANNEL_SUBNET in file: FILE',
      ...first.slice(2),
      'I Picking subnet in range 10.5.1.0 ... 10.5.255.0',
      'I Allocated lease (ip: SUBNET ipv6: ::/0) to current node (192.168.77.1) ',
      ...AFTER_THE_LEASE.slice(0, 4),
      'I Current network or subnet (10.5.0.0/16, SUBNET) is not equal to previous one (0.0.0.0/0, 0.0.0.0/0), ' +
        'trying to recycle old iptables rules',
      ...AFTER_THE_LEASE.slice(4),
      ...AT_THE_END,
    ])
    expect(await life('SIGINT')).toEqual([
      ...BEFORE_THE_LEASE,
      'I Found lease (ip: SUBNET ipv6: ::/0) for current IP (192.168.77.1), reusing',
      ...AFTER_THE_LEASE,
      ...AT_THE_END,
    ])
    await etcd.ctl('del', '--prefix', '/coreos.com/network/subnets/')
    expect(await life('SIGTERM')).toEqual([
      ...BEFORE_THE_LEASE,
      'I Found previously leased subnet (SUBNET), reusing',
      'I Allocated lease (ip: SUBNET ipv6: ::/0) to current node (192.168.77.1) ',
      ...AFTER_THE_LEASE,
      ...AT_THE_END,
    ])
  })

  it('of peers that appear and disappear, and of the time until the lease is renewed', async () => {
    const daemon = start(host, ['--subnet-lease-renew-margin', '1380']) // 23 of the 24 hours
    await daemon.line(/^I.*\] Running backend\.$/)
    // No node draws this subnet, because it is below SubnetMin.
    const peer = '/coreos.com/network/subnets/10.5.0.0-24'
    await daemon.line(/^I.*\] Waiting for .* to renew lease$/)
    // The first listing may show this peer already. The watch reports the next change.
    const other = subnetOf(host) === '10.5.1.0/24' ? '10.5.2.0' : '10.5.1.0'
    await etcd.ctl('put', `/coreos.com/network/subnets/${other}-24`, '{"PublicIP":"192.168.77.251","PublicIPv6":null}')
    await daemon.line(new RegExp(`^I.*\\] Subnet added: ${other}/24$`))
    const before = messages(daemon).length
    await etcd.ctl('put', peer, '{"PublicIP":"192.168.77.250","PublicIPv6":null}')
    await daemon.line(/^I.*\] Subnet added: 10\.5\.0\.0\/24$/)
    await etcd.ctl('put', peer, '{"PublicIP":"192.168.77.249","PublicIPv6":null}')
    await etcd.ctl('del', peer)
    await daemon.line(/^I.*\] Subnet removed: 10\.5\.0\.0\/24$/)
    const logged = messages(daemon)
      .slice(before)
      .filter((line) => /^I (watchSubnets: |Subnet )/.test(line))
    expect(logged.map((line) => line.replace(/revision \d+$/, 'revision N'))).toEqual([
      'I watchSubnets: got valid subnet event with revision N',
      'I Subnet added: SUBNET',
      'I watchSubnets: got valid subnet event with revision N',
      'I Subnet added: SUBNET',
      'I watchSubnets: got valid subnet event with revision N',
      'I Subnet removed: SUBNET',
    ])
    // One hour, less a random part of up to a tenth and the duration of the start.
    await daemon.line(/^I.*\] Waiting for (1h0m0|5\dm\d+)s to renew lease$/)
  })

  it('and one more line on a host that does not forward packets', async () => {
    const setting = '/proc/sys/net/ipv4/ip_forward'
    await host.output(['sh', '-c', `echo 0 > ${setting}`])
    const filters = (): Promise<string> =>
      host.output([
        'sh',
        '-c',
        'cd /proc/sys/net/ipv4/conf && head -n 1 all/rp_filter default/rp_filter [!adf]*/rp_filter',
      ])
    const before = await filters()
    const daemon = start(host)
    await daemon.line(/^W.*\] net\.ipv4\.ip_forward is 0: no packet of a container leaves this host/)
    await daemon.line(/flannel is ready/)
    // pidof and pgrep use these two names.
    const named = (file: string): string => readFileSync(`/proc/${daemon.process.pid}/${file}`, 'utf8')
    expect([named('comm'), named('cmdline').replaceAll('\0', '')]).toEqual(['weftd\n', 'weftd'])
    expect(await filters()).toBe(before)
    const [of0, ofNew] = (
      await host.output(['sh', '-c', 'cd /proc/sys/net/ipv4/conf && cat flannel0/rp_filter default/rp_filter'])
    ).split('\n')
    expect(of0).toBe(ofNew)
    expect(await host.output(['cat', setting])).toBe('0\n') // weftd does not change the setting
  })

  it('of a given public IP, and of the wait for a configuration', async () => {
    await etcd.ctl('del', '/coreos.com/network/config')
    const daemon = start(host, ['--iface', '192.168.77.1', '--public-ip', '203.0.113.7'])
    let stdout = ''
    daemon.process.stdout!.on('data', (text: Buffer) => (stdout += text.toString()))
    await daemon.line(/^E.*\] Couldn't fetch network config: flannel config not found in etcd store\. Did you create/)
    await etcd.ctl('put', '/coreos.com/network/config', '{"Network":"10.5.0.0/16"}')
    await daemon.line(/^I.*\] Searching for interface using 192\.168\.77\.1$/)
    await daemon.line(/^I.*\] Using 203\.0\.113\.7 as external address$/)
    await daemon.line(/^I.*\] flannel is ready$/)
    expect(await etcd.ctl('get', '--prefix', '--print-value-only', '/coreos.com/network/subnets/')).toBe(
      '{"PublicIP":"203.0.113.7","PublicIPv6":null}\n',
    )
    expect(stdout).toBe('') // flanneld prints `timed out` here once a second
  })
})

describe('exit codes', () => {
  const weftd = join(packageRoot, 'bin/weftd')
  const run = (args: readonly string[], env: Readonly<Record<string, string>> = {}) =>
    host.run([
      'env',
      ...Object.entries(env).map(([name, value]) => `${name}=${value}`),
      process.execPath,
      weftd,
      '--etcd-endpoints',
      etcd.endpoint,
      '--subnet-file',
      host.subnetFile,
      '--status-socket',
      host.statusSocket,
      ...args,
    ])

  it.each([
    ['-h', [], {}, 0, /^Usage: .*weftd \[OPTION\]\.\.\.\n {2}-etcd-cafile string\n/],
    ['-help', [], {}, 0, /^Usage: /],
    ['--help', [], {}, 0, /^Usage: /],
    ['--version', [], { FLANNELD_ETCD_PREFIX: 'never read' }, 0, /^\d+\.\d+\.\d+\n$/],
    ['--unknown', [], {}, 2, /^\S*weftd: flag provided but not defined: -unknown; see --help\n$/],
    [
      '-v=0',
      ['--lease-dir=/nowhere'],
      { FLANNELD_KUBE_SUBNET_MGR: 'true' },
      2,
      /^\S*weftd: --lease-dir and --kube-subnet-mgr exclude each other; leave one of the two flags out\n$/,
    ],
    ['--ip-masq=perhaps', [], {}, 2, /invalid value "perhaps" for flag -ip-masq/],
    [
      '--subnet-lease-renew-margin=1440',
      [],
      {},
      1,
      /^E.*\] Invalid subnet-lease-renew-margin option, out of acceptable range/,
    ],
    // Only the flag asks for the version. A variable with an invalid value is named and ignored.
    [
      '--subnet-lease-renew-margin=0',
      [],
      { FLANNELD_VERSION: 'true', FLANNELD_IP_MASQ: 'perhaps' },
      1,
      /^E.*\] Failed to set flag FLANNELD from env: .*"perhaps" for FLANNELD_IP_MASQ.*\nE.*out of acceptable range/,
    ],
    ['--etcd-cafile=/nowhere', [], {}, 1, /\nE.*\] Failed to create SubnetManager: cannot read \/nowhere/],
    ['--iface=eth7', ['--iface-wait=0'], {}, 1, /\nE.*\] Failed to find interface to use that matches the interfaces/],
    // After the first argument that is not a flag nothing is parsed: neither 'false' nor the bad flag after it.
    ['--version', ['false', '--unknown'], {}, 0, /^\d+\.\d+\.\d+\n$/],
  ] as const)('%s %j with %j: %d', async (flag, more, env, code, stderr) => {
    const result = await run([flag, ...more], env)
    expect(result.stderr).toMatch(stderr)
    expect([result.code, result.stdout]).toEqual([code, ''])
  })

  it('1 without the password', async () => {
    const { code, stderr } = await run(['--etcd-cafile=/nowhere', '--etcd-username=u', '--etcd-password=hush'])
    expect(code).toBe(1)
    expect(stderr).toContain('etcd-username:u etcd-password:<hidden>')
    expect(stderr).not.toContain('hush')
  })

  it.each([
    ['{"Network":"10.5.0.0/16","Backend":{"Type":"XYZ"}}', 'Error fetching backend: unknown backend type: xyz'],
    ['{"Network":"10.5.0.0/16","Backend":{}}', 'Error fetching backend: unknown backend type: ;'],
    ['{"EnableIPv4":false}', 'none defined stack'],
    ['{"Network":"10.5.0.0/28"}', 'Error registering network: failed to acquire lease: out of subnets'],
  ])('1 for the configuration %s', async (config, message) => {
    await etcd.ctl('put', '/coreos.com/network/config', config)
    for (const last of [4, 8, 12])
      await etcd.ctl('put', `/coreos.com/network/subnets/10.5.0.${last}-30`, `{"PublicIP":"192.0.2.${last}"}`)
    const { code, stderr } = await run([])
    expect(stderr.trim().split('\n').at(-1)?.replace(HEADER, '$1 ')).toMatch(`E ${message}`)
    expect(code).toBe(1)
  })

  it.each([true, false])(
    'weftd that ends leaves the lease, subnet.env and the rules; these stay, device and route too: %s',
    async (persist) => {
      const daemon = start(host, ['--ip-masq', `--persist=${persist}`])
      await daemon.line(/flannel is ready/)
      expect(await host.output(['ss', '-Hltn'])).toBe('') // without --healthz-port weftd listens on no TCP port
      expect(await daemon.stop()).toBe(0)
      expect(await etcd.ctl('get', '--prefix', '--print-value-only', '/coreos.com/network/subnets/')).toContain('77.1')
      expect(host.subnetEnv()['FLANNEL_IPMASQ']).toBe('true')
      expect(await host.output(['iptables-save'])).toContain('-A FLANNEL-POSTRTG')
      expect(await host.output(['ip', 'route', 'show', '10.5.0.0/16'])).toMatch(persist ? /dev flannel0/ : /^$/)
      expect((await host.run(['ip', 'link', 'show', 'dev', 'flannel0'])).code === 0).toBe(persist)
    },
  )
})

describe('variables', () => {
  it('set the flags that are missing on the command line', async () => {
    const file = join(lab.folder, 'by-variable.env')
    await etcd.ctl('put', '/elsewhere/config', '{"Network":"10.6.0.0/16"}')
    const env = {
      FLANNELD_ETCD_PREFIX: '/elsewhere',
      FLANNELD_PUBLIC_IP: '198.51.100.1',
      FLANNELD_IFACE: 'eth0',
      FLANNELD_IP_MASQ: 't',
      FLANNELD_HEALTHZ_PORT: '0x2117',
      FLANNELD_HEALTHZ_IP: '127.0.0.1',
      FLANNELD_SUBNET_FILE: '/nowhere/at/all',
      FLANNELD_KUBE_API_URL: '', // an empty variable counts as unset
    }
    rmSync(host.subnetFile, { force: true })
    writeFileSync(file, '')
    const daemon = host.spawn([
      'env',
      ...Object.entries(env).map(([name, value]) => `${name}=${value}`),
      process.execPath,
      join(packageRoot, 'bin/weftd'),
      '--status-socket',
      host.statusSocket,
      '--etcd-endpoints',
      etcd.endpoint,
      // A word that is not a flag ends the flags. weftd ignores it and all later words.
      '-public-ip',
      '203.0.113.9',
      `-subnet-file=${file}`,
      'word',
      '--unknown',
      '-public-ip=192.0.2.1',
    ])
    let log = ''
    daemon.stderr!.on('data', (text: Buffer) => (log += text.toString()))
    await expect.poll(() => log).toContain('flannel is ready')
    expect(log).toContain('Using 203.0.113.9 as external address')
    expect(log).toMatch(
      /Created subnet manager.*\n.*\] Start healthz server on 127\.0\.0\.1:8471\n.*Found network config/,
    )
    expect(await host.output(['cat', file])).toMatch(
      /^FLANNEL_NETWORK=10\.6\.0\.0\/16\nFLANNEL_SUBNET=10\.6\.\d+\.1\/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n$/,
    )
    expect(await host.output(['ss', '-Hltn'])).toMatch(/^LISTEN +\d+ +\d+ +127\.0\.0\.1:8471 /)
    const probe = `console.log(await (await fetch('http://127.0.0.1:8471/readyz')).text())`
    expect(await host.output([process.execPath, '--input-type=module', '-e', probe])).toBe('flanneld is ready\n')
  })
})

describe("etcd's protection", () => {
  it('is met by the certificate, the key, the authority, the user and the password that the flags give', async () => {
    const address = '192.168.77.254'
    const [certificate, key] = [join(lab.folder, 'cert.pem'), join(lab.folder, 'key.pem')]
    await host.output([
      'openssl',
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:prime256v1',
      '-nodes',
      '-days',
      '2',
      '-keyout',
      key,
      '-out',
      certificate,
      '-subj',
      '/CN=nobody',
      '-addext',
      `subjectAltName=IP:${address}`,
      '-addext',
      'extendedKeyUsage=serverAuth,clientAuth',
    ])
    await etcd.close()
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address, tls: { certificate, key } })
    await etcd.ctl('put', '/coreos.com/network/config', '{"Network":"10.5.0.0/16"}')
    for (const name of ['root', 'flannel']) {
      await etcd.ctl('user', 'add', `${name}:sesame`)
      await etcd.ctl('user', 'grant-role', name, 'root')
    }
    await etcd.ctl('auth', 'enable')

    const given = {
      'etcd-cafile': certificate,
      'etcd-certfile': certificate,
      'etcd-keyfile': key,
      'etcd-username': 'flannel',
      'etcd-password': 'sesame',
    }
    const flags = (names: readonly string[]): string[] =>
      Object.entries(given).flatMap(([name, value]) => (names.includes(name) ? [`--${name}=${value}`] : []))
    // A later daemon that starts from the last known state would survive a refused login.
    const daemon = start(host, [...flags(Object.keys(given)), '--persist=false'])
    await daemon.line(/flannel is ready/)
    expect(daemon.lines.filter((line) => line.startsWith('E'))).toEqual([])
    expect(await daemon.stop()).toBe(0)

    // Without the certificate etcd counts as unavailable; without the user the start fails as a mistake.
    const unknown = start(host, flags(['etcd-cafile', 'etcd-username', 'etcd-password']))
    await unknown.line(/^E.*Couldn't fetch network config: /)
    expect(await unknown.stop()).toBe(0)
    const denied = start(host, flags(['etcd-cafile', 'etcd-certfile', 'etcd-keyfile']))
    await denied.line(/^E.*denied access: .*; give --etcd-username and --etcd-password/)
    await expect.poll(() => denied.process.exitCode).toBe(1)
    for (const { lines } of [daemon, unknown, denied]) for (const line of lines) expect(line).toMatch(HEADER)
  })
})
