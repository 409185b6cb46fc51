// bundle.test.ts - the archive contains no secret, nor a part of one.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { output } from '../../../../lab/command.ts'
import { Secret } from '../../../../src/base/secret.ts'
import { run, type Run } from '../../../../src/host/command.ts'
import { writeBundle } from '../../../../src/tool/weft/bundle.ts'

const never = new AbortController().signal
let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-bundle-test-'))))
afterEach(() => rmSync(folder, { recursive: true }))

it('hides a secret completely if another secret is a part of it', async () => {
  const path = join(folder, 'bundle.tar.gz')
  const secrets = [new Secret('winter'), new Secret('winter-2026'), new Secret('2026-winter-2026')]
  const findings = 'a winter-2026 b 2026-winter-2026 c winter d\n'
  const about = {
    findings,
    findingsJson: '[]\n',
    status: undefined,
    subnetFile: join(folder, 'none'),
    config: undefined,
  }
  await writeBundle(path, { ...about, secrets }, async () => '', never)
  const read = await output(['tar', '-xzOf', path, 'weft-doctor/doctor.txt'])
  expect(read).toBe('a <hidden> b <hidden> c <hidden> d\n')
})

it.each([
  [
    'ExecStart=/usr/bin/weftd --etcd-password=pa:ss --ip-masq',
    'ExecStart=/usr/bin/weftd --etcd-password=<hidden> --ip-masq',
  ],
  ['weftd -etcd-password pa@ss', 'weftd -etcd-password <hidden>'],
  [String.raw`weftd "--etcd-password=p \"a b" -v=1`, 'weftd "--etcd-password=<hidden>" -v=1'],
  [`--etcd-password='p a' -v=1`, `--etcd-password='<hidden>' -v=1`],
  [`weftd '--etcd-password=p a' -v=1`, `weftd '--etcd-password=<hidden>' -v=1`],
  ['env "FLANNELD_ETCD_PASSWORD=p a" weftd', 'env "FLANNELD_ETCD_PASSWORD=<hidden>" weftd'],
  ['FLANNELD_ETCD_PASSWORD="p a", -v=1', 'FLANNELD_ETCD_PASSWORD="<hidden>", -v=1'],
  ['give --etcd-password of a user', 'give --etcd-password of a user'],
])('hides the password that a command prints in %s', async (said, expected) => {
  const path = join(folder, 'bundle.tar.gz')
  const files = { findings: '', findingsJson: '[]\n', status: undefined, subnetFile: join(folder, 'none') }
  const printed = async (file: string): Promise<string> => (file === 'systemctl' ? said : '')
  await writeBundle(path, { ...files, config: undefined, secrets: [] }, printed, never)
  const read = await output(['tar', '-xzOf', path, 'weft-doctor/log.txt'])
  expect(read.split('\n')[1]).toBe(expected)
})

it('needs no temporary folder and no program, because the file system of a pod is read-only and the images lack tar', async () => {
  const path = join(folder, 'bundle.tar.gz')
  const files = { findings: 'a'.repeat(512), findingsJson: '', status: undefined, subnetFile: join(folder, 'none') }
  vi.stubEnv('TMPDIR', join(folder, 'missing'))
  vi.stubEnv('PATH', '')
  await writeBundle(path, { ...files, config: '{}', secrets: [] }, async () => 'ä\n', never).finally(() =>
    vi.unstubAllEnvs(),
  )
  const listed = (await output(['tar', '-tvzf', path])).trimEnd().split('\n')
  expect(listed[0]).toMatch(/^drwx------ 0\/0 .* weft-doctor\/$/)
  expect(listed.slice(1).every((line) => /^-rw------- 0\/0 .* weft-doctor\/[\w.-]+$/.test(line))).toBe(true)
  const names = listed.slice(1).map((line) => line.replace(/.*\//, ''))
  expect(names).toEqual(
    expect.arrayContaining(['README.txt', 'doctor.txt', 'net-conf.json', 'versions.txt', 'log.txt']),
  )
  expect(await output(['tar', '-xzOf', path, 'weft-doctor/doctor.txt'])).toBe('a'.repeat(512))
  expect(await output(['tar', '-xzOf', path, 'weft-doctor/doctor.json'])).toBe('')
  expect(await output(['tar', '-xzOf', path, 'weft-doctor/links.txt'])).toContain('$ ss -lun\nä\n')
})

it('leaves no file if running a command throws an unexpected error', async () => {
  const path = join(folder, 'bundle.tar.gz')
  const files = { findings: '', findingsJson: '', status: undefined, subnetFile: join(folder, 'none') }
  const failing = async (): Promise<string> => {
    throw new Error('why')
  }
  const writing = writeBundle(path, { ...files, config: undefined, secrets: [] }, failing, never)
  await expect(writing).rejects.toThrow(`${path} cannot be made: why`)
  expect(readdirSync(folder)).toEqual([])
})

it('ends the commands and leaves no file if Ctrl-C interrupts it', async () => {
  const path = join(folder, 'bundle.tar.gz')
  const files = { findings: '', findingsJson: '', status: undefined, subnetFile: join(folder, 'none') }
  const interrupted = new AbortController()
  const sleeping: Run = (_file, _args, options) => {
    interrupted.abort(new Error('Ctrl-C'))
    return run('sleep', ['60'], options)
  }
  const writing = writeBundle(path, { ...files, config: undefined, secrets: [] }, sleeping, interrupted.signal)
  await expect(writing).rejects.toThrow(/^Ctrl-C$/)
  expect(readdirSync(folder)).toEqual([])
})

// With a search that looks back through the line at each character, this test would need hours.
it('is written quickly also for a million bytes of findings, which are one line', async () => {
  const path = join(folder, 'bundle.tar.gz')
  const findingsJson = `{"of":"weftd ${'x'.repeat(1_000_000)}"}\n`
  const files = { findings: '', findingsJson, status: undefined, subnetFile: join(folder, 'none') }
  await writeBundle(path, { ...files, config: undefined, secrets: [] }, async () => '', never)
  expect(await output(['tar', '-xzOf', path, 'weft-doctor/doctor.json'])).toBe(findingsJson)
})
