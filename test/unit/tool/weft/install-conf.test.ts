// install-conf.test.ts - the copy is always complete, has the mode of the source, and leaves no other file.

import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { main } from '../../../../src/tool/weft/weft.ts'

let folder: string
let said: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'install-conf-'))
  said = ''
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    said += String(text)
    return true
  })
})
afterEach(() => {
  vi.restoreAllMocks()
  rmSync(folder, { recursive: true })
})
const path = (name: string): string => join(folder, name)

describe('weft install-conf', () => {
  it('copies text and mode over an existing file, with any umask', async () => {
    writeFileSync(path('cni-conf.json'), '{"name":"cbr0"}\n')
    chmodSync(path('cni-conf.json'), 0o664)
    writeFileSync(path('10-flannel.conflist'), 'old')
    const umask = process.umask(0o077)
    try {
      expect(await main(['install-conf', path('cni-conf.json'), path('10-flannel.conflist')])).toBe(0)
    } finally {
      process.umask(umask)
    }
    expect(readFileSync(path('10-flannel.conflist'), 'utf8')).toBe('{"name":"cbr0"}\n')
    expect(statSync(path('10-flannel.conflist')).mode & 0o7777).toBe(0o664)
    expect(readdirSync(folder).toSorted()).toEqual(['10-flannel.conflist', 'cni-conf.json'])
  })

  it('is never seen half written', async () => {
    const texts = ['a', 'b'].map((letter) => letter.repeat(1_000_000))
    texts.forEach((text, index) => writeFileSync(path(`${index}`), text))
    await main(['install-conf', path('0'), path('conf')])
    const writing = (async () => {
      for (let round = 1; round <= 20; round++) await main(['install-conf', path(String(round % 2)), path('conf')])
      return 'written'
    })()
    let reads = 0
    while ((await Promise.race([writing, new Promise(setImmediate)])) !== 'written') {
      expect(texts).toContain(readFileSync(path('conf'), 'utf8'))
      reads++
    }
    expect(reads).toBeGreaterThan(20)
  })

  it.each([[[]], [['a']], [['a', 'b', 'c']]])('exits with 1 and the usage for the arguments %j', async (args) => {
    expect(await main(['install-conf', ...args])).toBe(1)
    expect(said).toContain('install-conf SRC DEST')
  })

  it('exits with 1 and one line if it fails, and keeps the old file', async () => {
    writeFileSync(path('conf'), 'old')
    expect(await main(['install-conf', path('none'), path('conf')])).toBe(1)
    expect(said).toMatch(/^weft install-conf: error installing ".*none": ENOENT.*\n$/)
    expect(await main(['install-conf', path('conf'), path('none/conf')])).toBe(1)
    expect(await main(['install-conf', folder, path('conf')])).toBe(1)
    expect(readFileSync(path('conf'), 'utf8')).toBe('old')
    expect(readdirSync(folder)).toEqual(['conf'])
  })
})
