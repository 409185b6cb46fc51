// bundle.ts - `weft doctor --bundle`: writes an archive for an issue report. The archive has the state of this host and
// its weftd, without secrets.

import { open, readFile, unlink } from 'node:fs/promises'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { version } from '../../base/assets.ts'
import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { Secret, withoutUser } from '../../base/secret.ts'
import { printableLines } from '../../base/text.ts'
import { hideSecrets, parseJson, withoutSecrets } from '../../control/config/hidden.ts'
import type { Run } from '../../host/command.ts'
import type { Status } from '../../report/status.ts'

interface ToBundle {
  readonly findings: string
  readonly findingsJson: string
  readonly status: Status | undefined
  readonly subnetFile: string
  /** The text of the network configuration in the store, unchanged and with its secrets. */
  readonly config: string | undefined
  /** Passwords from the command line or the environment, which are removed from all files of the archive. */
  readonly secrets: readonly Secret[]
}

const FOLDER = 'weft-doctor'
const README = `The state of one host, written by weft doctor --bundle for an issue report.

Keys, passwords, tokens and users of URLs have been removed. Names and addresses of hosts have not, nor have the firewall rules and the
last lines of weftd's log. Read the files before you give them to somebody you do not know.
`

type Words = readonly [file: string, ...args: readonly string[]]
/** The commands whose output fills each file of the archive. These commands do not change the host. */
const COMMANDS: Readonly<Record<string, readonly Words[]>> = {
  'versions.txt': [
    ['uname', '-a'],
    ['cat', '/etc/os-release'],
    ['ip', '-V'],
    ['iptables', '-V'],
    ['nft', '--version'],
    ['systemctl', '--version'],
  ],
  'links.txt': [
    ['ip', '-details', '-statistics', 'address', 'show'],
    ['ip', 'neighbour', 'show'],
    ['ss', '-lun'],
  ],
  'routes.txt': [
    ['ip', 'rule', 'show'],
    ['ip', 'route', 'show', 'table', 'all'],
    ['ip', '-6', 'rule', 'show'],
    ['ip', '-6', 'route', 'show', 'table', 'all'],
  ],
  'firewall.txt': [
    ['iptables', '-w', '5', '-S'],
    ['iptables-save', '-c'],
    ['ip6tables', '-w', '5', '-S'],
    ['ip6tables-save', '-c'],
    ['iptables-legacy-save', '-c'],
    ['ip6tables-legacy-save', '-c'],
    ['nft', 'list', 'ruleset'],
  ],
  'kernel.txt': [
    ['sysctl', 'net.ipv4.ip_forward', 'net.ipv6.conf.all.forwarding', 'net.ipv4.conf.all.rp_filter'],
    ['sysctl', 'net.bridge.bridge-nf-call-iptables'],
    ['sysctl', 'net.core.rmem_max', 'net.core.wmem_max', 'net.ipv4.ping_group_range'],
    ['cat', '/proc/net/snmp', '/proc/net/netstat'],
    ['cat', '/proc/net/softnet_stat'],
    ['grep', '-E', '^(tun|vxlan|wireguard|ipip|esp4|br_netfilter|nf_|nft_|ip_tables|ip6_tables|xt_)', '/proc/modules'],
  ],
  'log.txt': [
    ['systemctl', 'status', 'weftd', '--no-pager', '--lines=0'],
    ['journalctl', '--unit=weftd', '--lines=1000', '--no-pager', '--output=short-iso-precise'],
  ],
}

/**
 * Runs the commands. Returns a text with each command and its output, or the reason why the command failed. If `signal`
 * aborts, kills the commands and throws the signal's reason.
 */
async function outputs(run: Run, commands: readonly Words[], signal: AbortSignal): Promise<string> {
  const parts = await Promise.all(
    commands.map(async ([file, ...args]) => {
      const said = await run(file, args, { signal }).catch((error: unknown) => {
        signal.throwIfAborted()
        if (isWeftError(error)) return `(${error.message})\n`
        throw error
      })
      return `$ ${[file, ...args].join(' ')}\n${said}\n`
    }),
  )
  return parts.join('')
}

function secretsIn(value: unknown): readonly Secret[] {
  if (value instanceof Secret) return [value]
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(secretsIn) : []
}

/**
 * The minimum number of characters of a secret that is searched for and removed. A shorter secret would match ordinary
 * text.
 */
const SHORTEST = 4

/**
 * Matches the password of etcd on a command line, which `systemctl status` prints for a weftd that has ended, and in an
 * assignment of a variable. systemd puts quotes around a whole argument, shells also around the password. The expression
 * looks back through the line only after `--etcd-password`, because a line can have a million characters.
 */
const PASSWORD =
  /((["'])(?:--?etcd-password|FLANNELD_ETCD_PASSWORD)=)(?:\\.|(?!\2)[^\\\n])*|((?:--?etcd-password=|--?etcd-password +(?<=(?:weftd|flanneld) .*)|FLANNELD_ETCD_PASSWORD=)["']?)(?:(?<=")(?:\\.|[^"\\\n])*|(?<=')[^'\n]*|\S+)/g

/** Makes a function that removes the secrets `secrets` from a text, and escapes terminal sequences in the text. */
function cleaner(secrets: readonly Secret[]): (text: string) => string {
  // Replace the longest secret first, because a shorter secret may be the beginning of a longer one.
  const values = secrets
    .map((secret) => secret.reveal())
    .filter((value) => value.length >= SHORTEST)
    .toSorted((a, b) => b.length - a.length)
  const withoutPassword = (text: string): string => text.replaceAll(PASSWORD, '$1$3<hidden>')
  return (text) =>
    printableLines(
      values.reduce((left, value) => left.replaceAll(value, '<hidden>'), withoutUser(withoutPassword(text))),
    )
}

/**
 * Removes the secrets from a network configuration, and returns the secrets too. Omits a text that is not JSON, because
 * weft cannot recognise the secrets in it.
 */
function shownConfig(text: string): { readonly shown: string; readonly secrets: readonly Secret[] } {
  try {
    return { shown: `${withoutSecrets(text)}\n`, secrets: secretsIn(hideSecrets(parseJson(text))) }
  } catch (error) {
    return { shown: `(it is not valid JSON: ${messageOf(error)})\n`, secrets: [] }
  }
}

/**
 * Writes the archive to a file that only its owner may read. Throws WeftError USAGE if the file exists or cannot be
 * created. Throws COMMAND if writing failed, and the reason of `signal` if `signal` aborts, after deleting the file.
 */
export async function writeBundle(path: string, what: ToBundle, run: Run, signal: AbortSignal): Promise<void> {
  const file = await open(path, 'wx', 0o600).catch((error: NodeJS.ErrnoException) => {
    const why = error.code === 'EEXIST' ? 'it exists already' : messageOf(error)
    throw new WeftError('USAGE', `${path} cannot be written: ${why}`, { remedy: 'name a file that does not exist yet' })
  })
  try {
    await file.writeFile(await promisify(gzip)(tarOf(await gather(what, run, signal))))
    await file.sync()
  } catch (error) {
    await unlink(path).catch(() => {})
    signal.throwIfAborted()
    throw isWeftError(error)
      ? error
      : new WeftError('COMMAND', `${path} cannot be made: ${messageOf(error)}`, {
          remedy: 'check that the disk is not full',
          cause: error,
        })
  } finally {
    await file.close()
  }
}

/** Returns the contents of the archive's files by file name, without secrets. */
async function gather(what: ToBundle, run: Run, signal: AbortSignal): Promise<Readonly<Record<string, string>>> {
  const { shown, secrets } = what.config === undefined ? { shown: '', secrets: [] } : shownConfig(what.config)
  const clean = cleaner([...what.secrets, ...secrets])
  const subnetEnv = await readFile(what.subnetFile, 'utf8').catch((error: unknown) => `(${messageOf(error)})\n`)
  const files: Record<string, string> = {
    'README.txt': README,
    'doctor.txt': what.findings,
    'doctor.json': what.findingsJson,
    'subnet.env': subnetEnv,
    'about.txt': `weft ${version()}\nNode.js ${process.version}\n${new Date().toISOString()}\n`,
    ...(what.config === undefined ? {} : { 'net-conf.json': shown }),
    ...(what.status ? { 'status.json': `${JSON.stringify(what.status, undefined, 2)}\n` } : {}),
  }
  for (const [name, commands] of Object.entries(COMMANDS)) files[name] = await outputs(run, commands, signal)
  return Object.fromEntries(Object.entries(files).map(([name, text]) => [name, clean(text)]))
}

const BLOCK = 512

/**
 * Makes a tar archive of a folder with these files, in the format ustar (POSIX, pax, section "ustar Interchange
 * Format"). Does not use the program tar or a temporary folder, because weft's images have no tar, and the root file
 * system of weft's pods is read-only.
 */
function tarOf(files: Readonly<Record<string, string>>): Buffer {
  const seconds = Math.floor(Date.now() / 1000)
  const octal = (value: number, digits: number): string => `${value.toString(8).padStart(digits, '0')}\0`
  const header = (name: string, mode: number, size: number, type: '0' | '5'): Buffer => {
    const block = Buffer.alloc(BLOCK)
    block.write(name, 0)
    block.write(octal(mode, 7) + octal(0, 7) + octal(0, 7) + octal(size, 11) + octal(seconds, 11), 100)
    block.write(`        ${type}`, 148) // for the sum, the checksum field counts as eight spaces
    block.write('ustar\x0000', 257)
    block.write(
      octal(
        block.reduce((sum, byte) => sum + byte, 0),
        6,
      ),
      148,
    )
    return block
  }
  const entries = Object.entries(files).flatMap(([name, text]) => {
    const content = Buffer.from(text)
    const padding = Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK)
    return [header(`${FOLDER}/${name}`, 0o600, content.length, '0'), content, padding]
  })
  return Buffer.concat([header(`${FOLDER}/`, 0o700, 0, '5'), ...entries, Buffer.alloc(2 * BLOCK)])
}
