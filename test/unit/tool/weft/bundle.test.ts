// bundle.test.ts - the archive contains no secret, nor a part of one.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { output } from '../../../../lab/command.ts'
import { Secret } from '../../../../src/base/secret.ts'
import { writeBundle } from '../../../../src/tool/weft/bundle.ts'

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
  await writeBundle(path, { ...about, secrets }, async () => '')
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
  await writeBundle(path, { ...files, config: undefined, secrets: [] }, async (file) =>
    file === 'systemctl' ? said : '',
  )
  const read = await output(['tar', '-xzOf', path, 'weft-doctor/log.txt'])
  expect(read.split('\n')[1]).toBe(expected)
})

// With a search that looks back through the line at each character, this test would need hours.
it('is written quickly also for a million bytes of findings, which are one line', async () => {
  const path = join(folder, 'bundle.tar.gz')
  const findingsJson = `{"of":"weftd ${'x'.repeat(1_000_000)}"}\n`
  const files = { findings: '', findingsJson, status: undefined, subnetFile: join(folder, 'none') }
  await writeBundle(path, { ...files, config: undefined, secrets: [] }, async () => '')
  expect(await output(['tar', '-xzOf', path, 'weft-doctor/doctor.json'])).toBe(findingsJson)
})
