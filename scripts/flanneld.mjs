// flanneld.mjs - builds flannel's own flanneld for tests of mixed networks, and returns the path of flanneld.
//
// The first build takes some minutes. It needs a Go of the version in flannel's go.mod, a C compiler, and Go's module
// proxy. The program is kept in ~/.cache/weft or $XDG_CACHE_HOME/weft. It lacks the backend tencent-vpc, whose large
// library no test needs.

import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { runAloud } from './progress.mjs'
import { undo } from './undo.mjs'

export const MODULE = 'github.com/flannel-io/flannel'
export const FLANNEL_VERSION = 'v0.28.9'
const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'weft')
/** The path of the program flanneld, whether it is already built or not. */
export const FLANNELD = join(cache, `flanneld-${FLANNEL_VERSION}`)

/**
 * Returns the path of flanneld, and builds flanneld if it is missing. Throws an Error that names the command that
 * failed.
 */
export async function flanneld() {
  if (existsSync(FLANNELD)) return FLANNELD
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'flanneld-'))
  const remove = undo(() => rmSync(work, { recursive: true, force: true }))
  const download = ['mod', 'download', '-json', `${MODULE}@${FLANNEL_VERSION}`]
  const { status, stdout, stderr, error } = spawnSync('go', download, { cwd: work, encoding: 'utf8' })
  if (status !== 0) throw new Error(`go ${download.join(' ')} failed: ${error?.message ?? stderr.trim()}`)
  const source = join(work, 'source')
  // Make the copy writable, because a plain copy of the read-only Go module cache would be read-only.
  cpSync(JSON.parse(stdout).Dir, source, { recursive: true, mode: 0 })
  spawnSync('chmod', ['-R', 'u+w', source])
  const main = join(source, 'main.go')
  writeFileSync(main, readFileSync(main, 'utf8').replace(/^.*backend\/tencentvpc.*\n/m, ''))
  process.stderr.write(`building flanneld ${FLANNEL_VERSION}, once, for some minutes\n`)
  const code = await runAloud('go', ['build', '-o', join(work, 'flanneld'), '.'], {
    cwd: source,
    stdout: process.stderr,
    env: { ...process.env, CGO_ENABLED: '1' },
  })
  if (code !== 0) throw new Error(`go build of flanneld ended with exit code ${code}`)
  renameSync(join(work, 'flanneld'), FLANNELD)
  remove()
  return FLANNELD
}
