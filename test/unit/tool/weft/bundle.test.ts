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
