// secrets.test.ts - marks each secret with a canary, runs every command and causes every error that could show it, and then searches
// everything that was written, served or passed to a command.

import { chmodSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { startEtcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import { weft as inThisProcess } from '../support/screen.ts'
import { noWireguardDevice } from '../support/wireguard.ts'

needs(HOSTS, 'curl', 'wg', ...ETCD)

/** The text of all canaries, with different additions. */
const CANARY = 'CANARYc4nary'
/** A key in the form of `wg genpsk` that contains the canary. */
const PSK = `${CANARY.repeat(4).slice(0, 42)}A=`
/** A user and password as in the header of a request. */
const IN_BASE64 = Buffer.from(`jo:${CANARY}`).toString('base64').slice(0, -4)

let lab: Lab
let host: Host
/** The printed and served texts, each with its origin. */
let outputs: [string, string][]
let daemons: Daemon[]
beforeEach(async () => {
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
  ;[outputs, daemons] = [[], []]
})
afterEach(() => lab.close())

const leases = (): string => join(lab.folder, 'leases')
const bin = (name: string): string => join(packageRoot, 'bin', name)
function putConfig(text: string | object): string[] {
  mkdirSync(join(leases(), 'subnets'), { recursive: true })
  writeFileSync(join(leases(), 'config'), typeof text === 'string' ? text : JSON.stringify(text))
  return ['--lease-dir', leases()]
}

/** Returns a command prefix whose folder has programs that record their arguments. */
function wrapped(): string[] {
  const folder = join(lab.folder, 'bin')
  mkdirSync(folder, { recursive: true })
  for (const name of ['wg', 'ip', 'iptables', 'nft']) {
    const script = `#!/bin/sh
printf '%s\\n' "${name} $*" >> ${lab.folder}/calls
PATH=\${PATH#*:}; exec ${name} "$@"
`
    writeFileSync(join(folder, name), script)
    chmodSync(join(folder, name), 0o755)
  }
  return ['sh', '-c', 'PATH="$0:$PATH" exec "$@"', folder]
}

function start(at: Host, args: readonly string[], env: Record<string, string> = {}): Daemon {
  const daemon = at.startDaemon({
    args: ['-v', '10', '--healthz-port', '8080', ...args],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${at.name}-keys`, 'wgkey'), ...env },
    before: [...WIREGUARD_APART, ...wrapped()],
  })
  daemons.push(daemon)
  return daemon
}

async function run(words: readonly string[], env: Record<string, string> = {}): Promise<number | null> {
  const given = Object.entries(env).map(([name, value]) => `${name}=${value}`)
  const { code, stdout, stderr } = await host.run(['env', ...given, process.execPath, ...words])
  outputs.push([words.map((word) => word.replaceAll(CANARY, '?')).join(' '), stdout + stderr])
  return code
}
async function weft(...words: string[]): Promise<void> {
  const { out, err } = await inThisProcess(words)
  outputs.push([['weft', ...words].join(' ').replaceAll(CANARY, '?'), out + err])
}
const onSocket = (): string[] => ['--status-socket', host.statusSocket]

/** Runs all commands that only read, and requests everything that is served. */
async function lookAtAll(store: readonly string[]): Promise<void> {
  for (const path of ['', 'status.json', 'metrics', 'livez', 'readyz', 'healthz', 'drops.json'])
    outputs.push([path, await host.output(['curl', '-sS', `http://127.0.0.1:8080/${path}`])])
  for (const path of ['status.json', 'drops.json'])
    outputs.push([path, await host.output(['curl', '-sS', '--unix-socket', host.statusSocket, `http://x/${path}`])])
  const subnet = readdirSync(join(leases(), 'subnets'))[0]!.replace('-', '/')
  for (const words of [
    ['status'],
    ['peers'],
    ['wg'],
    ['doctor'],
    ['explain', '10.5.1.2', '10.5.2.2'],
    ['capture'],
    ['ping', subnet, '--count', '1'],
    ['lease', 'ls'],
    ['lease', 'show', subnet],
    ['config', 'check'],
  ]) {
    const more = ['lease', 'config'].includes(words[0]!) ? store : []
    for (const json of [[], ['--json']]) await weft(...words, ...onSocket(), ...more, ...json)
  }
  await weft('config', 'get', ...onSocket(), ...store)
  const file = join(lab.folder, `bundle-${outputs.length}.tar.gz`)
  await run([bin('weft'), 'doctor', '--bundle', file, ...onSocket(), ...store, '--etcd-password', CANARY])
  outputs.push(['bundle', (await execute(['tar', '-xzOf', file])).stdout])
  expect(outputs.at(-1)![1]).toContain('-P FORWARD')
}

/** Returns the content of all files below a folder, without the files in which a secret belongs. */
function textsIn(folder: string): (readonly [path: string, text: string])[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => join(folder, name))
    .filter((path) => !path.startsWith(join(leases(), 'config')) && !/kubeconfig|-keys\/wgkey$/.test(path))
    .flatMap((path) => {
      try {
        return statSync(path).isFile() ? [[path, readFileSync(path, 'latin1')] as const] : []
      } catch (error) {
        // A running daemon writes a new file and renames it, so this one may have disappeared.
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
        throw error
      }
    })
}

/** Returns the pre-shared key and the private keys in all usual spellings. */
function keys(): string[] {
  const files = readdirSync(lab.folder, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('/wgkey'))
  const all = [PSK, ...files.map((name) => readFileSync(join(lab.folder, name), 'utf8'))].map((text) =>
    Buffer.from(text, 'base64'),
  )
  return all
    .filter((bytes) => bytes.length === 32)
    .flatMap((bytes) => (['base64', 'base64url', 'hex', 'latin1'] as const).map((form) => bytes.toString(form)))
}

/** Fails with the place of each canary. */
async function search(): Promise<void> {
  for (const daemon of daemons) {
    outputs.push(['log', daemon.lines.join('\n')])
    const { exitCode, signalCode, pid } = daemon.process
    if (exitCode === null && signalCode === null)
      outputs.push(['its words', readFileSync(`/proc/${pid}/cmdline`, 'latin1')])
  }
  const all = [...outputs, ...textsIn(lab.folder)]
  // Pieces are searched too, because an error may quote a part of a line.
  const pieces = [CANARY, CANARY.slice(0, 8), CANARY.slice(-8), IN_BASE64]
  const lines = all.flatMap(([where, text]) =>
    text
      .split('\n')
      .filter((line) => pieces.some((piece) => line.includes(piece)))
      .map((line) => `${where}: ${line}`),
  )
  expect(lines).toEqual([])
  const forms = keys()
  expect(all.filter(([, text]) => forms.some((form) => text.includes(form))).map(([where]) => where)).toEqual([])
}

it('keys generated by weftd are only in the store and in their file', async () => {
  const peer = { PublicKey: 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=', Port: 51_820 }
  const store = putConfig({ Network: '10.5.0.0/16', Backend: { Type: 'wireguard', DataPath: 'userspace', PSK } })
  writeFileSync(
    join(leases(), 'subnets', '10.5.0.0-24'),
    JSON.stringify({ PublicIP: '192.168.77.2', BackendType: 'wireguard', BackendData: peer }),
  )
  const daemon = start(host, [...store, '--probe-interval', '1'])
  await daemon.line(/flannel is ready/)
  // Nobody answers this handshake, which the status reports.
  await eventually(async () => {
    const status = await host.output(['curl', '-sS', 'http://127.0.0.1:8080/status.json'])
    expect(JSON.parse(status)).toHaveProperty('peers.list.0.session.failure', 'no-answer')
  })
  await lookAtAll(store)
  expect(outputs.find(([words]) => words.startsWith('weft wg'))![1]).toContain('  preshared key: (hidden)\n')
  expect(keys()).toHaveLength(8)
  expect(await daemon.stop()).toBe(0)
  await search()
})

it('a pre-shared key is only in the store and in the device', async ({ skip }) => {
  const lack = await noWireguardDevice()
  skip(lack !== undefined, lack)
  const backend = {
    Type: 'wireguard',
    DataPath: 'kernel',
    PSK,
    Password: CANARY,
    More: [{ apiToken: { a: CANARY } }],
    Url: `http://jo:${CANARY}@h`,
  }
  // A peer for which the key is set.
  const peer = { PublicKey: 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=', Port: 51_820 }
  const config = { Network: '10.5.0.0/16', Secret: CANARY, Backend: backend }
  const store = putConfig(config)
  writeFileSync(
    join(leases(), 'subnets', '10.5.0.0-24'),
    JSON.stringify({ PublicIP: '192.168.77.2', BackendType: 'wireguard', BackendData: peer }),
  )
  await start(host, store, { TMPDIR: '/nowhere' }).line(/flannel is ready/)
  const [device] = daemons as [Daemon]
  const inside = ['nsenter', '--target', String(device.process.pid), '--mount']
  await eventually(async () =>
    expect(await host.output([...inside, 'wg', 'show', 'flannel-wg', 'preshared-keys'])).toContain(PSK),
  )
  // weftd passes the keys to the kernel itself, and neither through a program nor through a file.
  expect(readFileSync(join(lab.folder, 'calls'), 'utf8')).not.toMatch(/^wg /m)
  expect(readdirSync(join(lab.folder, `${host.name}-keys`))).toEqual(['wgkey'])
  await lookAtAll(store)
  expect(outputs.find(([path]) => path === 'status.json')![1]).toContain('"psk":"<hidden>"')
  expect(outputs.find(([words]) => words.includes('config get'))![1]).toContain('"PSK":"<hidden>"')
  await search()
  // The option is named, and its value is hidden.
  const { stdout } = await host.run([process.execPath, bin('weft'), 'config', 'get', '--show-secrets', ...store])
  expect(JSON.parse(stdout)).toEqual(config)

  // The key file is broken meanwhile. The device is checked again after its port has changed.
  const key = join(lab.folder, `${host.name}-keys`, 'wgkey')
  chmodSync(key, 0o600)
  writeFileSync(key, `${CANARY.repeat(4).slice(0, 42)}!=`)
  await host.output([...inside, 'wg', 'set', 'flannel-wg', 'listen-port', '1'])
  await device.line(
    /^W.*continues with the key that it read at its start, although the key file .*wgkey holds no WireGuard key/,
  )
  await device.line(/Repaired: 1 settings of flannel-wg/)
  writeFileSync(key, '')
  await search()
})

const REFUSED: readonly (readonly [string | object, RegExp])[] = [
  [{ Type: 'wireguard', PSK: `${CANARY}!` }, /Backend\.PSK is "<hidden>"; give it a key/],
  [{ Type: 'wireguard', PSK: [CANARY] }, /Backend\.PSK is "<hidden>"/],
  [`{"Network":"10.5.0.0/16","Backend":{"PSK":${CANARY}}}`, /at line 1, column 43/],
  [`{"Network":"10.5.0.0/16","Backend":{"PSK":"${CANARY}"x}}`, /not valid JSON/],
  [{ Type: { Secret: CANARY } }, /Type is object \{"Secret":"<hidden>"\}/],
  [{ Type: 'extension', PreStartupCommand: `false http://jo:${CANARY}@h` }, /`false http:\/\/h` failed/],
]

it('an error does not show the refused value', async () => {
  for (const [backend, line] of REFUSED) {
    const store = putConfig(typeof backend === 'string' ? backend : { Network: '10.5.0.0/16', Backend: backend })
    const daemon = start(host, store)
    await daemon.line(line)
    if (daemon.process.exitCode === null) await Promise.race([daemon.stop(), ended(daemon.process)])
    for (const json of [[], ['--json']]) await weft('config', 'check', ...store, ...json)
    await weft('config', 'get', ...store)
    await weft('config', 'set', join(leases(), 'config'), ...store)
  }
  await search()
})

it('the arguments of a command are in the log but not in the shown configuration', async () => {
  const command = `echo --token ${CANARY} http://jo:its@h`
  const store = putConfig({ Network: '10.5.0.0/16', Backend: { Type: 'extension', PostStartupCommand: command } })
  const daemon = start(host, store)
  await daemon.line(new RegExp(`Ran command: echo --token ${CANARY} http://h`))
  await daemon.line(/flannel is ready/)
  const status = await host.output(['curl', '-sS', '--unix-socket', host.statusSocket, 'http://x/status.json'])
  expect(JSON.parse(status)).toHaveProperty('config.backend.poststartupcommand', 'echo <hidden>')
  await weft('config', 'get', ...store)
  expect(outputs.at(-1)![1]).toContain('"PostStartupCommand":"echo <hidden>"')
})

it('the saved state has no secret, and a daemon can still start from it', async () => {
  const store = putConfig({ Network: '10.5.0.0/16', Backend: { Type: 'udp', PSK: CANARY } })
  const first = start(host, store)
  await first.line(/flannel is ready/)
  const known = `${host.subnetFile}.last-known`
  await eventually(() => expect(readFileSync(known, 'utf8')).toContain('<hidden>'))
  expect(statSync(known).mode & 0o777).toBe(0o600)
  await lookAtAll(store)
  expect(await first.stop()).toBe(0)
  const second = start(host, store)
  await second.line(/Forwarding to 0 peers as last known/)
  await second.line(/flannel is ready/)
  expect(second.lines.filter((text) => text.includes('is opened again'))).toEqual([])
  await search()
})

it('no line has the password of etcd or the user of an endpoint', async () => {
  const url = `http://jo:it's-\`a"${CANARY}@127.0.0.1:1`
  const user = ['--etcd-username', 'jo', `--etcd-password=${CANARY}`]
  const away = start(host, [...user, '--etcd-endpoints', `${url},jo:${CANARY}@127.0.0.1:2`])
  await away.line(
    /etcd at http:\/\/127\.0\.0\.1:1, 127\.0\.0\.1:2 cannot be reached|etcd at http:\/\/127\.0\.0\.1:1,127\.0\.0\.1:2/,
  )
  expect(await away.stop()).toBe(0)
  const byVariable = start(host, [], {
    FLANNELD_ETCD_ENDPOINTS: url,
    FLANNELD_ETCD_USERNAME: 'jo',
    FLANNELD_ETCD_PASSWORD: CANARY,
  })
  await byVariable.line(/cannot be reached/)
  expect(await byVariable.stop()).toBe(0)
  await weft('lease', 'ls', ...user, '--etcd-endpoints', url)
  const address = (await host.output(['sh', '-c', "ip route show default | sed 's/.* via //; s/ .*//'"])).trim()
  const etcd = await startEtcd({ namespace: `${lab.id}-switch`, address })
  try {
    await etcd.ctl('user', 'add', 'root:sesame')
    await etcd.ctl('user', 'grant-role', 'root', 'root')
    await etcd.ctl('auth', 'enable')
    const refused = start(host, [...user, '--etcd-endpoints', etcd.endpoint.replace('//', `//jo:${CANARY}@`)])
    await refused.line(/refused the user jo/)
    await ended(refused.process)
    await run([bin('weft'), 'config', 'get', ...user, '--etcd-endpoints', etcd.endpoint])
    expect(outputs.at(-1)![1]).toContain('refused the user jo')
  } finally {
    await etcd.close()
  }
  await search()
})

it('no line has the credentials for the Kubernetes API', async () => {
  const url = `http://jo:${CANARY}@127.0.0.1:1`
  const env = { NODE_NAME: 'node' }
  const kube = ['--kube-subnet-mgr', '--net-config-path', join(putConfig({ Network: '10.5.0.0/16' })[1]!, 'config')]
  const away = start(host, [...kube, '--kube-api-url', url], env)
  await away.line(/the Kubernetes API at http:\/\/127\.0\.0\.1:1 does not answer/)
  await away.stop()
  const kubeconfig = join(lab.folder, 'kubeconfig')
  const good = `current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://jo:${CANARY}@127.0.0.1:1"}}]
users: [{name: u, user: {token: "${CANARY}", client-key-data: "${Buffer.from(CANARY).toString('base64')}"}}]
`
  for (const [text, line] of [
    [good, /the Kubernetes API at|fail to create kubernetes config/],
    [good.replace('}]\n', '\n'), /it is not valid YAML/],
    [good.replace(`"${CANARY}"`, `*${CANARY}`), /it is not valid YAML/],
    [good.replace('https:', 'ftp:'), /the server in .*kubeconfig is "ftp:\/\/127\.0\.0\.1:1"/],
  ] as const) {
    writeFileSync(kubeconfig, text)
    const daemon = start(host, [...kube, '--kubeconfig-file', kubeconfig], env)
    await daemon.line(line)
    if (daemon.process.exitCode === null) await Promise.race([daemon.stop(), ended(daemon.process)])
  }
  await search()
})

it('an error about a mistyped flag does not show its value', async () => {
  for (const flag of ['--etcd-pasword', '---etcd-password', '--etcd-password']) {
    const word = `${flag}=${CANARY}`
    await run([bin('weftd'), word, '--nonsense'])
    await weft(word, 'status')
    await weft('lease', word)
    await weft('status', word)
    await weft('lease', 'ls', word, '--lease-dir', leases())
  }
  const env = { FLANNELD_ETCD_PASSWORD: CANARY, FLANNELD_ETCD_ENDPOINTS: `http://jo:${CANARY}@h`, FLANNELD_V: 'x' }
  for (const words of [
    [bin('weftd'), '--help'],
    [bin('weft'), 'lease', 'ls', '--help'],
    [bin('weft'), 'man'],
  ])
    expect(await run(words, env)).toBe(0)
  await search()
})
