// doctor.ts - `weft doctor`: what is wrong on this host, and what to do about it.

import { isWeftError } from '../errors.ts'
import { run } from '../host/command.ts'
import { diagnose, type Diagnosis } from '../doctor/checks.ts'
import { FINDINGS } from '../doctor/findings.ts'
import { gatherFacts, type AskPeer } from '../doctor/facts.ts'
import { FLANNEL_FLAGS } from '../options.ts'
import type { Status } from '../status/status.ts'
import { jsonLine, printable } from '../text.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { count, type Colour } from './look.ts'
import { createAsker, probeOf } from './peer.ts'

const WAIT_MS = 1_000

export const doctorCommand = command({
  name: 'doctor',
  does: 'look for what is wrong on this host, and say what to do',
  more: 'Changes nothing. Exits with 3 when it finds a failure; docs/doctor.md has all that it can find.',
  flags: {
    ...JSON_FLAG,
    ...SOCKET_FLAG,
    'subnet-file': { ...FLANNEL_FLAGS['subnet-file'], help: "the daemon's file, where no daemon says which" },
  },
  async run({ options: { json, 'status-socket': socket, 'subnet-file': subnetFile }, screen, signal }) {
    let silence: string | undefined
    let isForbidden = false
    const status = await askStatus(socket, signal).catch((error: unknown) => {
      if (!isWeftError(error)) throw error
      silence = error.message
      isForbidden = error.code === 'PERMISSION'
      return undefined
    })
    const asking = status && askingOf(status)
    try {
      const facts = await gatherFacts({ status, silence, isForbidden, subnetFile, run, ask: asking?.ask })
      const diagnoses = diagnose(facts)
      screen.write(json ? jsonLine(toJson(diagnoses)) : toText(diagnoses, screen.colour))
      const isSick = diagnoses.some(({ findings = [] }) =>
        findings.some(({ name }) => FINDINGS[name].level === 'failure'),
      )
      return isSick ? EXIT.wrong : EXIT.ok
    } finally {
      asking?.close()
    }
  },
})

/** Asks by one socket, opened with the first question. */
function askingOf(status: Status): { readonly ask: AskPeer | undefined; close(): void } {
  let asker: ReturnType<typeof createAsker> | undefined
  const known = (status.peers?.list ?? []).flatMap((peer) => probeOf(status, peer) ?? [])
  const [first] = known
  return {
    ask:
      first &&
      (async (peer, bytes) => {
        const probe = probeOf(status, peer)
        asker ??= createAsker(first.from)
        return probe !== undefined && (await asker.ask(probe.to, WAIT_MS, bytes)) !== undefined
      }),
    close: () => asker?.close(),
  }
}

function toJson(diagnoses: readonly Diagnosis[]): unknown {
  return diagnoses.map(({ check, findings }) => ({
    check,
    state: findings === undefined ? 'unknown' : worst(findings),
    findings: (findings ?? []).map(({ name, detail }) => {
      const { level, means, fix } = FINDINGS[name]
      return { name, level, detail, means, fix }
    }),
  }))
}

function worst(findings: NonNullable<Diagnosis['findings']>): 'ok' | 'warning' | 'failure' {
  if (findings.some(({ name }) => FINDINGS[name].level === 'failure')) return 'failure'
  return findings.length > 0 ? 'warning' : 'ok'
}

function toText(diagnoses: readonly Diagnosis[], colour: Colour): string {
  const lines = diagnoses.flatMap(({ check, findings }) => {
    const name = check.padEnd(12)
    if (findings === undefined) return [`${name}${colour('dim', 'unknown')}\n`]
    if (findings.length === 0) return [`${name}${colour('good', 'ok')}\n`]
    // What is found several times is explained once.
    const names = [...new Set(findings.map((finding) => finding.name))]
    return names.flatMap((each) => {
      const { level, means, fix } = FINDINGS[each]
      const details = findings.filter((finding) => finding.name === each && finding.detail !== '')
      return [
        `${name}${colour(level === 'failure' ? 'bad' : 'doubtful', level)}  ${means} ${colour('dim', `(${each})`)}\n`,
        ...details.map(({ detail }) => `${' '.repeat(14)}${printable(detail)}\n`),
        `${' '.repeat(14)}${colour('bold', 'to do:')} ${fix}\n`,
      ]
    })
  })
  const all = diagnoses.flatMap(({ findings = [] }) => findings)
  const failures = new Set(all.map(({ name }) => name).filter((name) => FINDINGS[name].level === 'failure')).size
  const warnings = new Set(all.map(({ name }) => name)).size - failures
  const sum =
    failures + warnings === 0
      ? colour('good', 'nothing is wrong')
      : `${count(failures, 'failure')}, ${count(warnings, 'warning')}`
  return `${lines.join('')}\n${sum}\n`
}
