// package.test.ts - the files that `npm pack` would pack: everything that runs, and nothing else; `npm run image:test` installs the package
// on a bare Debian.

import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { builtinModules } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join, normalize } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../lab/lab.ts'

const root = (path: string): string => join(packageRoot, path)
const read = (path: string): string => readFileSync(root(path), 'utf8')
const below = (folder: string, pattern: RegExp): string[] =>
  readdirSync(root(folder), { recursive: true, encoding: 'utf8' })
    .map((path) => join(folder, path))
    .filter((path) => pattern.test(path))

const manifest = JSON.parse(read('package.json')) as {
  bin: Record<string, string>
  scripts: Record<string, string>
  dependencies: Record<string, string>
}
/** --ignore-scripts, because the script would compile and print more than the list. */
const packed = (
  JSON.parse(
    execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts', '--loglevel=silent'], {
      cwd: packageRoot,
      encoding: 'utf8',
    }),
  ) as [{ files: { path: string }[] }]
)[0].files.map(({ path }) => path)

describe('the package', () => {
  it('has the programs, everything that they run, the unit and the manuals', () => {
    // The page's scripts are inlined in the page; two files belong to the single-file executable.
    const compiled = below('src', /(?<!^src\/report\/page\/.*|^src\/executable|\/assets-inside)\.ts$/).map(
      (path) => `dist/${path.replace(/ts$/, 'js')}`,
    )
    const manuals = ['README.md', 'LICENSE', 'CHANGELOG.md', 'SECURITY.md', 'docs/messages.md', 'docs/differences.md']
    const wanted = [...Object.values(manifest.bin), ...compiled, ...manuals, 'deploy/weftd.service', 'package.json']
    wanted.push('dist/src/report/page/page.html')
    expect(compiled.length).toBeGreaterThan(50)
    expect(wanted.filter((path) => !packed.includes(path))).toEqual([])
  })

  it('has all sources of the addon, and the folder for prebuilt ones', () => {
    const sources = [...read('binding.gyp').matchAll(/"(native\/[^"]+\.cc)"/g)].map(([, path]) => path!)
    const wanted = new Set(['binding.gyp', 'native/bpf/build.mjs', 'native/bpf/kernel_way.bpf.c', ...sources])
    for (const path of wanted) {
      const included = [...read(path).matchAll(/^#include "([^"]+)"/gm)].map(([, name]) => name!)
      // The build writes the header with the eBPF programs (native/bpf/build.mjs).
      for (const name of included.filter((each) => !read('binding.gyp').includes(`/generated/${each}`))) {
        const candidates = [join(dirname(path), name), join('native', name)].map(normalize)
        wanted.add(candidates.find((candidate) => existsSync(root(candidate))) ?? name)
      }
    }
    expect(sources.length).toBeGreaterThan(10)
    expect([...wanted].filter((path) => !packed.includes(path))).toEqual([])
    expect((JSON.parse(read('package.json')) as { files: string[] }).files).toContain('prebuilds')
    expect(manifest.scripts['prepack']).toBe('node scripts/prepack.mjs')
  })

  it('has neither tests nor files that only a clone needs', () => {
    const known = new Set(['CHANGELOG.md', 'LICENSE', 'README.md', 'SECURITY.md', 'package.json', 'binding.gyp'])
    const folders = ['bin/', 'deploy/', 'dist/src/', 'docs/', 'native/', 'prebuilds/']
    const isKnown = (path: string): boolean => known.has(path) || folders.some((folder) => path.startsWith(folder))
    expect(packed.filter((path) => !isKnown(path))).toEqual([])
    expect(packed.filter((path) => /page\/.*\.js$|\.map$|\.test\.|Dockerfile/.test(path))).toEqual([])
  })

  it('depends only on packages that run or build the addon', () => {
    const imported = below('src', /(?<!^src\/report\/page\/.*)\.ts$/).flatMap((path) =>
      [...read(path).matchAll(/(?:from |import[ (]|require\()'([^.'][^']*)'/g)].map(([, name]) =>
        name!.startsWith('@') ? name!.split('/').slice(0, 2).join('/') : name!.split('/')[0]!,
      ),
    )
    const packages = imported.filter((name) => !name.startsWith('node:') && !builtinModules.includes(name))
    const toBuild = [...read('binding.gyp').matchAll(/require\('([^']+)'\)/g)].map(([, name]) => name!)
    // npm has the node-gyp that compiles a package without a prebuilt addon.
    const compiler = 'node-gyp-build'
    expect(manifest.scripts['install']).toBe(compiler)
    expect(new Set(Object.keys(manifest.dependencies))).toEqual(new Set([...packages, ...toBuild, compiler]))
  })

  it('explains without an addon how an installed copy gets one, because it has no `npm run setup`', () => {
    const copy = mkdtempSync(join(tmpdir(), 'weft-package-'))
    try {
      for (const path of packed.filter((name) => !name.startsWith('prebuilds/')))
        cpSync(root(path), join(copy, path), { recursive: true })
      symlinkSync(root('node_modules'), join(copy, 'node_modules'))
      const start = (...args: string[]) =>
        spawnSync(process.execPath, [join(copy, 'bin/weftd'), ...args], { encoding: 'utf8' })
      expect(start('--version').stderr).toBe(`${(JSON.parse(read('package.json')) as { version: string }).version}\n`)
      const { status, stderr } = start('--without', 'udp-gso')
      expect(stderr).toMatch(
        /weftd: the native addon cannot be loaded: .*; build it with npm rebuild -g weft, which needs make, g\+\+ and python3\n$/,
      )
      expect(status).toBe(1)
    } finally {
      rmSync(copy, { recursive: true })
    }
  })
})
