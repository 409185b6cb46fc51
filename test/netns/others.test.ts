// others.test.ts - harmful leases that others wrote: with daemons of each backend the test then checks every log, answer, file and command
// argument.

import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { expectHarmless, HOSTILE } from '../support/hostile.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'curl')

let lab: Lab
let host: Host
beforeEach(async () => {
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
})
afterEach(() => lab.close())

const HEADER = /^[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w.-]+\/[\w.-]+:\d+\] /

/** Returns leases with the harmful text in one field each, of the backend's type and of another type. */
function leasesOf(type: string, data: object): string[] {
  const sound = { PublicIP: '192.0.2.2', PublicIPv6: null, BackendType: type, BackendData: data }
  return [
    HOSTILE,
    ...Object.keys(sound).map((name) => JSON.stringify({ ...sound, [name]: HOSTILE })),
    ...Object.keys(data).map((name) => JSON.stringify({ ...sound, BackendData: { ...data, [name]: HOSTILE } })),
    JSON.stringify({ ...sound, BackendV6Data: { VtepMAC: HOSTILE } }),
    JSON.stringify({ ...sound, [HOSTILE]: HOSTILE }),
  ]
}

/** Returns a command prefix whose folder has `ip` and others that record their arguments and their input. */
function wrapped(): string[] {
  const folder = join(lab.folder, 'bin')
  mkdirSync(folder)
  for (const name of ['ip', 'bridge', 'wg', 'sysctl', 'iptables', 'iptables-restore', 'nft', 'add-peer']) {
    const real = name === 'add-peer' ? 'cat' : `${name} "$@"`
    const script = `#!/bin/sh
for word in "$@"; do printf 'word: %s\\n' "$word" >> ${lab.folder}/calls; done
case "$*" in *-batch*) PATH=\${PATH#*:}; tee -a ${lab.folder}/calls | ${real};; *) PATH=\${PATH#*:}; exec ${real};; esac
`
    writeFileSync(join(folder, name), script)
    chmodSync(join(folder, name), 0o755)
  }
  return ['env', `PATH=${folder}:${process.env['PATH']}`]
}

it.each([
  [{ Type: 'udp' }, '', {}],
  [{ Type: 'vxlan', DataPath: 'userspace' }, 'vxlan', { VNI: 1, VtepMAC: 'aa:bb:cc:dd:ee:ff' }],
  [{ Type: 'host-gw' }, 'host-gw', {}],
  [{ Type: 'extension', SubnetAddCommand: 'add-peer $SUBNET $PUBLIC_IP' }, 'extension', {}],
])('a daemon with %j treats them as text', async (backend, type, data) => {
  const folder = join(lab.folder, 'leases')
  mkdirSync(join(folder, 'subnets'), { recursive: true })
  writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  const values = leasesOf(type, data)
  for (const [at, value] of values.entries()) {
    writeFileSync(join(folder, 'subnets', `10.5.${at + 100}.0-24`), value)
    // The key of a lease is its name, which may have text before the subnet.
    const name = `${HOSTILE.replaceAll(/[\0/]/g, '').slice(-150)}10.5.${at + 150}.0-24`
    writeFileSync(join(folder, 'subnets', name), value)
  }
  const daemon = host.startDaemon({
    args: ['--lease-dir', folder, '-v', '10', '--healthz-port', '8080'],
    before: wrapped(),
  })
  await daemon.line(/flannel is ready/)
  await daemon.line(/Ignoring bad subnet node.*PWNED/)
  const status = async (): Promise<string> => host.output(['curl', '-sS', 'http://127.0.0.1:8080/status.json'])
  await eventually(async () => expect(await status()).toContain('PWNED'))
  for (const path of ['status.json', 'metrics', 'livez'])
    expectHarmless(path, await host.output(['curl', '-sS', `http://127.0.0.1:8080/${path}`]))
  const log = readFileSync(daemon.logFile, 'utf8')
  expectHarmless('the log', log)
  expect(
    log
      .trimEnd()
      .split('\n')
      .filter((line) => !HEADER.test(line)),
  ).toEqual([])
  for (const file of [host.subnetFile, `${host.subnetFile}.last-known`])
    if (existsSync(file)) expectHarmless(file, readFileSync(file, 'utf8').replaceAll(/[\u007F-\u{10FFFF}]/gu, ''))
  // The harmful text is neither an argument of a command nor a line of its input.
  const calls = readFileSync(join(lab.folder, 'calls'), 'utf8')
  expect(calls).toContain('word: ')
  expect(calls).not.toMatch(/PWNED|forged|-x"|img src/)
})
