// doctor.ts - `weft doctor`: finds faults on this host, and says how to repair each fault.

import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import { isWeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { jsonLine, printable } from '../../base/text.ts'
import { sourceOf } from '../../control/lease/decode.ts'
import { run } from '../../host/command.ts'
import { hostKernel } from '../../host/netlink/host-kernel.ts'
import type { Address, Family } from '../../net/address.ts'
import { lastKnownFile, readLastKnown, type LastKnown } from '../../node/restart/last-known.ts'
import { FLANNEL_FLAGS, STORE_FLAGS, storeKindOf, type KeyStoreOptions } from '../../options.ts'
import { placeIn, type Status } from '../../report/status.ts'
import { diagnose, type Diagnosis } from '../doctor/checks.ts'
import { gatherFacts, type Sources, type StoreSeen } from '../doctor/facts.ts'
import { FINDINGS, fixOf, grouped } from '../doctor/findings.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchStatus } from './daemon-client.ts'
import { count, type Colour } from './look.ts'
import { createPinger, probesOf } from './peer.ts'
import { recall, storedConfig, type Remains } from './recall.ts'
import { inStore, isStoreGiven } from './store.ts'

const WAIT_MS = 1_000
/** How long, in ms, weft doctor waits for the store. The time is short because the store is only one of many checks. */
const STORE_MS = 3_000

const QUIET: Log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

export const doctorCommand = command({
  name: 'doctor',
  does: 'find what is wrong on this host, and say what to do',
  more: 'Changes nothing. Exits with 3 if it finds a failure. docs/doctor.md lists all findings; packages have it below /usr/share/doc/weft.',
  flags: {
    ...JSON_FLAG,
    ...SOCKET_FLAG,
    'subnet-file': { ...FLANNEL_FLAGS['subnet-file'], help: "the daemon's subnet file, used if no daemon answers" },
    bundle: {
      default: '',
      help: 'write all that it saw, without secrets, into this new file (tar.gz) for an issue report',
      placeholder: 'FILE',
    },
    ...STORE_FLAGS,
  },
  async run({ options, screen, signal }) {
    const { diagnoses, reported, config } = await examine(options, signal)
    const findingsJson = jsonLine(toJson(diagnoses))
    screen.write(options.json ? findingsJson : toText(diagnoses, screen.colour))
    if (options.bundle !== '') {
      const findings = toText(diagnoses, (_tone, text) => text)
      const subnetFile = reported?.daemon.subnetFile ?? options['subnet-file']
      const secrets = [options['etcd-password'], options['etcd-endpoints']]
      const what = { findings, findingsJson, status: reported, subnetFile, config, secrets }
      const { writeBundle } = await import('./bundle.ts')
      await writeBundle(options.bundle, what, run, signal)
      if (!options.json) screen.write(`all facts are in ${options.bundle}; read it before you give it to others\n`)
    }
    const isSick = diagnoses.some(({ findings = [] }) =>
      findings.some(({ name }) => FINDINGS[name].level === 'failure'),
    )
    return isSick ? EXIT.wrong : EXIT.ok
  },
})

type DoctorOptions = KeyStoreOptions & { readonly 'status-socket': string; readonly 'subnet-file': string }

async function examine(options: DoctorOptions, signal: AbortSignal) {
  let silence: string | undefined
  let isForbidden = false
  const reported = await fetchStatus(options['status-socket'], signal).catch((error: unknown) => {
    if (!isWeftError(error)) throw error
    silence = error.message
    isForbidden = error.code === 'PERMISSION'
    return undefined
  })
  const subnetFile = reported?.daemon.subnetFile ?? options['subnet-file']
  const known = reported ? undefined : await readLastKnown(lastKnownFile({ 'subnet-file': subnetFile }), QUIET)
  const { seen, why, stored, place } = await lookInStore(options, reported, known, signal)
  // Reconstruct the status only if no weftd runs. If this user may not query weftd, weftd may still run.
  const status = reported ?? (isForbidden ? undefined : await recallFrom(subnetFile, known, stored, place))
  const probing = status && probingOf(status)
  try {
    const isDown = status?.dataPath?.open === false
    const probes = { probe: isDown ? undefined : probing?.probe, ping: probing?.ping, pingFrom: probing?.pingFrom }
    const facts = await gatherFacts({
      status,
      silence,
      isForbidden,
      subnetFile,
      run,
      kernel: hostKernel,
      ...probes,
      store: seen,
      whyStoreUnknown: why,
    })
    return { diagnoses: diagnose(facts), reported, config: stored?.config }
  } finally {
    probing?.close()
  }
}

interface Looked {
  readonly seen: StoreSeen | undefined
  readonly why?: string
  readonly stored: Remains['stored']
  readonly place: Remains['place']
}

/**
 * Reads the configuration and the leases from the store that the flags name. If no flag names a store, uses weftd's
 * store, or, if no weftd runs, the store that the file of the last known state names.
 */
async function lookInStore(
  options: DoctorOptions,
  reported: Status | undefined,
  known: LastKnown | undefined,
  signal: AbortSignal,
): Promise<Looked> {
  const [kind = '', noted = ''] = /^(\w+) (.*)$/s.exec(known?.store ?? '')?.slice(1) ?? []
  const isGiven = isStoreGiven(options)
  const found = !isGiven && !reported && kind === 'directory' ? { ...options, 'lease-dir': noted } : options
  const name = reported && !isGiven ? reported.store.name : !isGiven && kind !== '' ? kind : storeKindOf(found)
  const leases =
    reported && !isGiven
      ? reported.daemon.leases
      : name === 'directory'
        ? found['lease-dir']
        : `${String(found['etcd-endpoints'])} ${found['etcd-prefix']}`
  const place = { store: name, leases }
  const unknown = { seen: undefined, stored: undefined, place }
  if (name === 'kubernetes') return { ...unknown, why: 'only weftd queries the Kubernetes API' }
  // Do not open an unused lease directory, because listing it would create its subfolders, and weft doctor must not
  // change anything.
  if (name === 'directory' && existsSync(leases) && !existsSync(join(leases, 'subnets')))
    return { ...unknown, why: `no weftd has used ${leases} yet` }
  try {
    return await inStore(found, reported, STORE_MS, { warn: () => {} }, signal, async ({ store, signal: till }) => {
      const { entries } = await sourceOf(store).list(till)
      const config = await store.config(till).catch((error: unknown) => {
        if (isWeftError(error, 'CONFIG_MISSING')) return undefined
        throw error
      })
      const stored = { config, leases: entries.flatMap(({ lease }) => lease ?? []) }
      return { seen: config === undefined ? {} : storedConfig(config), stored, place }
    })
  } catch (error) {
    signal.throwIfAborted()
    if (!isWeftError(error)) throw error
    // True if weft doctor reports the failure of the store as a finding. It does not in two cases in which the store
    // may be healthy: no flag and no weftd names the store, so that it is only the default store; or the store denied
    // this user access.
    const isSure =
      isWeftError(error, 'STORE_UNAVAILABLE') && (isGiven || kind === 'directory' || reported !== undefined)
    const why = `${name}: ${error.message}${error.remedy ? `; ${error.remedy}` : ''}`
    return isSure ? { ...unknown, seen: { problem: `${name}: ${error.message}` } } : { ...unknown, why }
  }
}

async function recallFrom(
  subnetFile: string,
  known: LastKnown | undefined,
  stored: Remains['stored'],
  place: Remains['place'],
): Promise<Status | undefined> {
  const [links, subnetEnv, netConf] = await Promise.all([
    hostKernel.links(),
    readFile(subnetFile, 'utf8').then(parseEnv, () => undefined),
    readFile(FLANNEL_FLAGS['net-config-path'].default, 'utf8').catch(() => undefined),
  ])
  return recall({ subnetFile, subnetEnv, known, stored, netConf, links, place, at: new Date() })
}

/** Returns the functions that probe peers and ping hosts. Each family has one socket, which the first probe opens. */
function probingOf(status: Status): Pick<Sources, 'probe' | 'ping' | 'pingFrom'> & { close(): void } {
  const pingers = new Map<Family, ReturnType<typeof createPinger>>()
  const isKnown = (status.peers?.list ?? []).some((peer) => probesOf(status, peer).length > 0)
  const pingerOf = (family: Family, from: Address) => {
    const pinger = pingers.get(family) ?? createPinger(from)
    pingers.set(family, pinger)
    return pinger
  }
  return {
    probe: isKnown
      ? async (peer, family, bytes) => {
          const probe = probesOf(status, peer).find((each) => each.family === family)
          return (
            probe !== undefined && (await pingerOf(family, probe.from).ping(probe.to, WAIT_MS, bytes)) !== undefined
          )
        }
      : undefined,
    async ping(peer, family) {
      const [from, to] = [
        status.node ? placeIn(status.node, family).publicIp : undefined,
        placeIn(peer, family).publicIp,
      ]
      return from === undefined || to === undefined ? undefined : pingTwice(from, to)
    },
    pingFrom: pingTwice,
    close() {
      for (const pinger of pingers.values()) pinger.close()
    },
  }
}

/** Pings an address up to two times, so that a single lost packet does not make a host look silent. */
async function pingTwice(from: Address, to: Address): Promise<boolean> {
  const pinger = createPinger(from)
  try {
    return (await pinger.ping(to, WAIT_MS)) !== undefined || (await pinger.ping(to, WAIT_MS)) !== undefined
  } finally {
    pinger.close()
  }
}

function toJson(diagnoses: readonly Diagnosis[]): unknown {
  return diagnoses.map(({ check, findings, why }) => ({
    check,
    ...(why === undefined ? {} : { why }),
    state: findings === undefined ? 'unknown' : worst(findings),
    findings: (findings ?? []).map((finding) => {
      const { name, detail } = finding
      const { level, means } = FINDINGS[name]
      return { name, level, detail, means, fix: fixOf(finding) }
    }),
  }))
}

function worst(findings: NonNullable<Diagnosis['findings']>): 'ok' | 'warning' | 'failure' {
  if (findings.some(({ name }) => FINDINGS[name].level === 'failure')) return 'failure'
  return findings.length > 0 ? 'warning' : 'ok'
}

export function toText(diagnoses: readonly Diagnosis[], colour: Colour): string {
  /**
   * For each reason, the name of the first check that could not run because of it. The output for later checks with the
   * same reason refers to that first check.
   */
  const firsts = new Map<string, string>()
  const lines = diagnoses.flatMap(({ check, findings, why = '' }) => {
    const name = check.padEnd(12)
    if (findings === undefined) {
      const first = firsts.get(why)
      if (first === undefined) firsts.set(why, check)
      return [
        `${name}${colour('dim', 'unknown')}  ${first === undefined ? printable(why) : `for the same reason as ${first}`}\n`,
      ]
    }
    if (findings.length === 0) return [`${name}${colour('good', 'ok')}\n`]
    return grouped(findings).flatMap(({ name: found, details, more, fixes }) => {
      const { level, means } = FINDINGS[found]
      const indent = ' '.repeat(14)
      return [
        `${name}${colour(level === 'failure' ? 'bad' : 'doubtful', level)}  ${means} ${colour('dim', `(${found})`)}\n`,
        ...details.map((detail) => `${indent}${printable(detail)}\n`),
        ...(more > 0 ? [`${indent}and ${more} more\n`] : []),
        ...fixes.map((fix) => `${indent}${colour('bold', 'to do:')} ${printable(fix)}\n`),
      ]
    })
  })
  const all = diagnoses.flatMap(({ findings = [] }) => findings)
  const failures = new Set(all.map(({ name }) => name).filter((name) => FINDINGS[name].level === 'failure')).size
  const warnings = new Set(all.map(({ name }) => name)).size - failures
  const unmade = diagnoses.filter(({ findings }) => findings === undefined).map(({ check }) => check)
  const rest = unmade.length === 0 ? '' : `; ${count(unmade.length, 'check')} could not be made (${unmade.join(', ')})`
  const sum =
    failures + warnings === 0
      ? colour(unmade.length === 0 ? 'good' : 'doubtful', `nothing wrong found${rest}`)
      : `${count(failures, 'failure')}, ${count(warnings, 'warning')}${rest}`
  return `${lines.join('')}\n${sum}\n`
}
