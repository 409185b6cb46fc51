// release.test.ts - `npm run release` fails if it does not know the time for its files, keeps release/ on failure, and lists its components.

import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runInNewContext } from 'node:vm'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { execute, output } from '../lab/command.ts'
import { packageRoot } from '../lab/lab.ts'
import { ARCHITECTURES, NODE_VERSION, ZIG_VERSION } from '../scripts/release/architectures.mjs'
import { inAscii } from '../scripts/release/bundle.mjs'
import { buildDeb } from '../scripts/release/deb.mjs'
import { documents } from '../scripts/release/documents.mjs'
import { partial } from '../scripts/release/fetch.mjs'
import { buildKubernetes } from '../scripts/release/kubernetes.mjs'
import { debianPackages, library } from '../scripts/release/materials.mjs'
import { architecturesIn } from '../scripts/release/options.mjs'
import { buildRpm } from '../scripts/release/rpm.mjs'
import { currentVersion, PLACES } from '../scripts/release/version.mjs'
import { HOSTS, lackOf } from './support/needs.ts'

const was = currentVersion()

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-release-'))
  for (const name of ['scripts', 'package.json'])
    cpSync(join(packageRoot, name), join(folder, name), { recursive: true })
  symlinkSync(join(packageRoot, 'node_modules'), join(folder, 'node_modules'))
  mkdirSync(join(folder, 'release'))
  writeFileSync(join(folder, 'release/kept'), '')
})
afterEach(() => rmSync(folder, { recursive: true }))

describe('a release', () => {
  it.each([
    [
      'without git and a time',
      '',
      /^release: git shows no commit \(.*not a git repository.*\); set SOURCE_DATE_EPOCH to /,
    ],
    ['of a time that is none', 'yesterday', /^release: SOURCE_DATE_EPOCH is not seconds since 1970: yesterday\n$/],
    ['of a clone that does not compile', '1', /^release: Command failed: .*tsc -p tsconfig\.json/m],
  ])('fails, and the existing release stays, %s', async (_, time, line) => {
    const { code, stderr } = await execute([
      'env',
      `SOURCE_DATE_EPOCH=${time}`,
      `GIT_CEILING_DIRECTORIES=${tmpdir()}`,
      process.execPath,
      join(folder, 'scripts/release/main.mjs'),
    ])
    expect(code).toBe(1)
    expect(
      stderr
        .split('\n')
        .filter((each) => each.startsWith('release: '))
        .join('\n') + '\n',
    ).toMatch(line)
    expect(existsSync(join(folder, 'release/kept'))).toBe(true)
  })
})

describe('the release of another publisher', () => {
  const main = (options: readonly string[], ...before: readonly string[]) =>
    execute([...before, process.execPath, join(folder, 'scripts/release/main.mjs'), ...options])

  it.each(['0.2.0-rc.1', '0.2', '01.0.0', '99999999999.0.0', 'v1.0.0', '1.0.0\n%(id)', ''])(
    'is refused for a version that some packages do not allow: %j',
    async (version) => {
      const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as object
      writeFileSync(join(folder, 'package.json'), JSON.stringify({ ...manifest, version }))
      const { code, stderr } = await main([], 'env', 'SOURCE_DATE_EPOCH=1')
      expect([code, stderr]).toEqual([
        1,
        expect.stringMatching(/release: package\.json: ".*" is not a version such as 0\.2\.0\n/),
      ])
    },
  )

  it.each([
    ['weft', 'is not the name of an image'],
    ['ghcr.io/Somebody/weft', 'is not the name of an image'],
    ['ghcr.io/somebody/weft:1', 'is not the name of an image'],
    ['docker://ghcr.io/somebody/weft', 'is not the name of an image'],
    ['', 'is not the name of an image'],
  ])('is refused for an invalid image name, before anything is built: %j', async (image, why) => {
    const { code, stderr } = await main(['--image', image])
    expect([code, stderr]).toEqual([2, expect.stringContaining(why)])
    expect(stderr).toContain('--image ghcr.io/somebody/weft')
  })

  it.each(['ghcr.io/somebody/weft', 'registry.example:5000/a/b-c/weft'])('may have its image at %s', async (image) => {
    const { code, stderr } = await main(['--image', image], 'env', 'SOURCE_DATE_EPOCH=yesterday')
    expect([code, stderr]).toEqual([1, expect.stringContaining('SOURCE_DATE_EPOCH is not seconds')])
  })

  it.each(['x86', 'amd64,', 'amd64 arm64', 'x64', ''])(
    'is refused for an architecture that no release has, before anything is built: %j',
    async (arch) => {
      const { code, stderr } = await main(['--arch', arch])
      expect([code, stderr]).toEqual([2, expect.stringContaining('is not an architecture of a release; write --arch ')])
      expect(stderr).toContain('amd64,arm64,armhf,ppc64el,riscv64,s390x')
    },
  )

  it('may have some of the architectures', async () => {
    const { code, stderr } = await main(['--arch', 'riscv64,amd64'], 'env', 'SOURCE_DATE_EPOCH=yesterday')
    expect([code, stderr]).toEqual([1, expect.stringContaining('SOURCE_DATE_EPOCH is not seconds')])
    expect(architecturesIn('riscv64,amd64').map(({ debian }) => debian)).toEqual(['amd64', 'riscv64'])
    expect(partial(architecturesIn('riscv64,amd64'))).toBe(
      'This release is for amd64, riscv64 only. It lacks arm64, armhf, ppc64el, s390x.',
    )
    expect(partial(ARCHITECTURES)).toBeUndefined()
  })

  it('in a folder of another user names the user who must remove it', async ({ skip }) => {
    if (process.getuid?.() !== 0) skip('only root makes a folder of somebody else')
    chmodSync(folder, 0o755)
    const { code, stderr } = await main([], 'setpriv', '--reuid=65534', '--clear-groups', 'env', 'SOURCE_DATE_EPOCH=1')
    expect([code, stderr]).toEqual([1, expect.stringMatching(/release: EACCES: .*; its owner, perhaps root, has to/)])
  })

  it('reports why a Node.js cannot be fetched', async () => {
    const [table, inputs] = ['architectures', 'inputs'].map((name) =>
      JSON.stringify(join(packageRoot, `scripts/release/${name}.mjs`)),
    )
    const { code, stderr } = await execute([
      'env',
      `XDG_CACHE_HOME=${folder}`,
      'npm_config_registry=http://127.0.0.1:9',
      'npm_config_fetch_retries=0',
      process.execPath,
      '--input-type=module',
      '-e',
      `const [{ ARCHITECTURES }, { nodeRelease }] = [await import(${table}), await import(${inputs})]; nodeRelease(ARCHITECTURES[0])`,
    ])
    expect([code, stderr]).toEqual([1, expect.stringMatching(/ECONNREFUSED/)])
    expect(readdirSync(join(folder, 'weft'))).toEqual([])
  })
})

describe('a mirror without some packages', () => {
  /** Fetches the inputs of the architectures with a mmdebstrap that fails, and a cache that has the inputs of amd64. */
  const fetched = (...names: readonly string[]) => fetchedFrom(undefined, ...names)
  /** `sources` is the value of WEFT_DEBIAN_SOURCES. */
  const fetchedFrom = async (sources: string | undefined, ...names: readonly string[]) => {
    const paths = ['architectures', 'fetch'].map((name) =>
      JSON.stringify(join(packageRoot, `scripts/release/${name}.mjs`)),
    )
    for (const name of ['trixie-image-amd64', 'bullseye-amd64', `node-${NODE_VERSION}-x64`, `zig-${ZIG_VERSION}`])
      mkdirSync(join(folder, 'weft', name), { recursive: true })
    writeFileSync(
      join(folder, 'mmdebstrap'),
      '#!/bin/sh\necho "I: running apt-get update..." >&2\necho "E: Failed to fetch http://a" >&2\nfor word; do :; done\n[ "$word" = "$WEFT_DEBIAN_SOURCES" ] && echo "E: from $word" >&2\nexit 1\n',
      { mode: 0o755 },
    )
    const program = [
      `const [{ ARCHITECTURES }, { fetchInputs }] = [await import(${paths[0]}), await import(${paths[1]})]`,
      `const chosen = ARCHITECTURES.filter(({ debian }) => ${JSON.stringify(names)}.includes(debian))`,
      'try { fetchInputs(chosen, () => {}); console.log("all") } catch (error) { console.log(error.message) }',
    ]
    const settings = ['env', `XDG_CACHE_HOME=${folder}`, `PATH=${folder}:${process.env['PATH']}`]
    if (sources !== undefined) settings.push(`WEFT_DEBIAN_SOURCES=${sources}`)
    return execute([...settings, process.execPath, '--input-type=module', '-e', program.join('\n')])
  }

  it('is reported with the option that leaves out their architectures', async () => {
    const { stdout, stderr } = await fetched('amd64', 'riscv64', 's390x')
    expect(stdout).toMatch(/^cannot download all packages .* for riscv64, s390x; .* npm run release -- --arch amd64\n$/)
    expect(stderr).toBe('riscv64: E: Failed to fetch http://a\ns390x: E: Failed to fetch http://a\n')
  })

  it('is reported with the servers that must be reached if no architecture is left', async () => {
    expect((await fetched('riscv64')).stdout).toMatch(
      / for riscv64; .* Check that this machine reaches deb\.debian\.org/,
    )
  })

  it('can be replaced by other apt sources, whose packages the cache keeps apart', async () => {
    const sources = join(folder, 'sources.list')
    writeFileSync(sources, 'deb http://a trixie main\n')
    const { stdout, stderr } = await fetchedFrom(sources, 'amd64')
    expect(stdout).toMatch(/^cannot download all packages .* for amd64; /)
    expect(stderr).toBe(`amd64: E: Failed to fetch http://a\nE: from ${sources}\n`)
  })

  it('is not replaced by a file that cannot be read', async () => {
    const { stderr } = await fetchedFrom(join(folder, 'none'), 'riscv64')
    expect(stderr).toMatch(/^riscv64: WEFT_DEBIAN_SOURCES must name a file with apt sources: ENOENT: .*\n$/)
  })

  it.each([
    ['deb http://a/debian trixie main\ndeb http://a/debian-security trixie-security main\n', true],
    ['deb [arch=amd64 signed-by=/k] http://a/s trixie-security main\n', true],
    ['Types: deb\nURIs: http://a\nSuites: trixie-updates trixie-security\n', true],
    ['deb http://a/debian trixie main\ndeb-src http://a/debian-security trixie-security main\n', false],
    ['deb http://a/debian-security trixie main\n', false],
    ['Types: deb\nURIs: http://a/debian-security\nSuites: trixie\n', false],
  ])('has security updates if a line of the sources names their suite: %j', async (text, isSecure) => {
    const sources = join(folder, 'secure.list')
    writeFileSync(sources, text)
    const inputs = JSON.stringify(join(packageRoot, 'scripts/release/inputs.mjs'))
    const program = `import { debianSources } from ${inputs}\nconsole.log(debianSources().isSecure)`
    const settings = ['env', `WEFT_DEBIAN_SOURCES=${sources}`]
    const { stdout } = await execute([...settings, process.execPath, '--input-type=module', '-e', program])
    expect(stdout).toBe(`${isSecure}\n`)
  })

  it('does not matter for the architectures that the cache has', async () => {
    expect(await fetched('amd64')).toMatchObject({ stdout: 'all\n', stderr: '' })
  })
})

describe('release:cut', () => {
  const cut = async (version: string) => {
    const { code, stderr } = await execute([
      process.execPath,
      join(folder, 'scripts/release/version.mjs'),
      'cut',
      version,
    ])
    return code === 0 ? 'cut' : stderr
  }
  beforeEach(() => {
    for (const path of new Set(PLACES.map(([place]) => place)))
      cpSync(join(packageRoot, path), join(folder, path), { recursive: true })
  })

  it.each([
    ['2.0.0', 'cut'],
    ['1.10.0', 'cut'],
    ['1.9.0', 'release: 1.9.0 must be later than 1.9.0, which is already released\n'],
    ['1.2.0', 'release: 1.2.0 must be later than 1.9.0, which is already released\n'],
    ['v2.0.0', 'release: "v2.0.0" is not a version such as 0.2.0\n'],
  ])('accepts only versions later than all released ones: %s', async (version, told) => {
    writeFileSync(join(folder, 'CHANGELOG.md'), '# C\n\n## 2.0.0 (unreleased)\n\na\n\n## 1.9.0 (2026-01-01)\n\nb\n')
    expect(await cut(version)).toBe(told)
    const { version: now } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { version: string }
    expect(now).toBe(told === 'cut' ? version : was)
  })
})

describe('a package', () => {
  const from = () => ({
    root: packageRoot,
    work: join(folder, 'work 100%d'),
    version: '0.1.0',
    build: { architecture: ARCHITECTURES[0]!, executable: join(folder, 'package.json'), addon: '', npm: '' },
    publisher: { maintainer: 'a <a@b>', repository: 'https://a' },
    texts: { 'usr/share/doc/weft/copyright': 'a', ...documents(packageRoot) },
  })
  beforeEach(() => vi.stubEnv('SOURCE_DATE_EPOCH', '4102444800')) // 2100-01-01, so that the clock is behind
  afterEach(() => vi.unstubAllEnvs())

  it('has the given time even if the clock is behind: Debian', async ({ skip }) => {
    const why = lackOf('dpkg-deb')
    skip(why !== undefined, why)
    const target = join(folder, 'weft.deb')
    buildDeb({ ...from(), target })
    const listing = (await output(['dpkg-deb', '--contents', target])).trim().split('\n')
    expect(listing.filter((line) => !line.includes(' 2100-01-01 '))).toEqual([])
    expect(listing.join('\n')).toMatch(/\.\/usr\/share\/doc\/weft\/docs\/doctor\.md$/m)
    expect(listing.join('\n')).toMatch(/\.\/usr\/share\/doc\/weft\/docs\/kubernetes\/talos\.md$/m)
    expect(await output(['dpkg-deb', '--field', target, 'Homepage'])).toBe('https://a\n')
    buildDeb({ ...from(), publisher: { maintainer: 'a <a@b>', repository: 'https://localhost/weft' }, target })
    expect((await output(['dpkg-deb', '--field', target, 'Homepage'])).trim()).toBe('')
  })

  it('is upgraded without a question although the administrator has changed the configuration: Debian', async ({
    skip,
  }) => {
    const why = lackOf('dpkg-deb', HOSTS)
    skip(why !== undefined, why)
    // The package of weft 0.2.0 contained /etc/default/weftd, with a text that differs from that of later versions.
    const old = join(folder, 'old')
    const [control, config, conffile] = ['DEBIAN/control', 'DEBIAN/conffiles', 'etc/default/weftd']
    for (const path of ['DEBIAN', 'etc/default']) mkdirSync(join(old, path), { recursive: true })
    const fields = ['Package: weft', 'Version: 0.0.2', 'Architecture: all', 'Maintainer: a <a@b>', 'Description: a', '']
    writeFileSync(join(old, control), fields.join('\n'))
    writeFileSync(join(old, config), `/${conffile}\n`)
    writeFileSync(join(old, conffile), '# the text of weft 0.2.0\n')
    await output(['dpkg-deb', '-Znone', '--build', old, join(folder, 'old.deb')])
    const { build, ...rest } = from()
    const executable = join(folder, 'weftd')
    writeFileSync(executable, '#!/bin/sh\necho "$@" >> /root/calls\n', { mode: 0o755 })
    buildDeb({ ...rest, build: { ...build, executable }, target: join(folder, 'new.deb') })
    // dpkg changes an overlay over the root folder of this machine, in a mount namespace of its own.
    const script = `
      mkdir "$0/memory"
      mount -t tmpfs tmpfs "$0/memory"
      cd "$0/memory"
      mkdir upper work merged
      mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work merged
      mount --bind /dev merged/dev
      cp "$0"/old.deb "$0"/new.deb merged/root
      dpkg() { chroot merged dpkg --force-depends --force-architecture "$@" < /dev/null > /dev/null; }
      dpkg --purge weft 2> /dev/null || true
      dpkg -i /root/new.deb
      cmp merged/etc/default/weftd "$1/deploy/deb/default"
      dpkg --purge weft
      [ ! -e merged/etc/default/weftd ]
      dpkg -i /root/old.deb
      echo FLANNELD_V=1 > merged/etc/default/weftd
      dpkg -i /root/new.deb
      cat merged/etc/default/weftd
      rm merged/etc/default/weftd
      dpkg -i /root/new.deb
      [ ! -e merged/etc/default/weftd ]
      echo '#FLANNELD_SUBNET_FILE=/no/subnet.env' > merged/etc/default/weftd
      echo 'FLANNELD_SUBNET_FILE="/run/a b/subnet.env"' >> merged/etc/default/weftd
      dpkg --purge weft
      [ ! -e merged/etc/default/weftd ]
      cat merged/root/calls`
    const { code, stdout, stderr } = await execute(['unshare', '--mount', 'sh', '-ec', script, folder, packageRoot])
    expect(stderr).not.toMatch(/conffile prompt/)
    expect([code, stdout]).toEqual([0, 'FLANNELD_V=1\ncleanup\ncleanup --subnet-file=/run/a b/subnet.env\n'])
  })

  it.for(ARCHITECTURES.filter(({ integrity }) => integrity === undefined))(
    "has the files of the npm package, and requires Debian's nodejs: $debian",
    async (architecture, { skip }) => {
      const why = lackOf('dpkg-deb')
      skip(why !== undefined, why)
      const npm = join(folder, 'npm')
      for (const path of ['bin', 'dist/src', 'docs', 'node_modules/winston', 'node_modules/node-addon-api'])
        mkdirSync(join(npm, path), { recursive: true })
      for (const path of ['bin/weftd', 'package.json', 'docs/a.md']) writeFileSync(join(npm, path), '')
      const addon = join(folder, 'weft.node')
      writeFileSync(addon, '')
      const target = join(folder, 'weft.deb')
      const { build: _, ...rest } = from()
      buildDeb({ ...rest, build: { architecture, executable: undefined, addon, npm }, target })
      expect(await output(['dpkg-deb', '--field', target, 'Architecture'])).toBe(`${architecture.debian}\n`)
      expect(await output(['dpkg-deb', '--field', target, 'Depends'])).toMatch(/^libc6 [^,]*, nodejs \(>= 20\.19\)$/m)
      expect(await output(['dpkg-deb', '--field', target, 'Suggests'])).toContain('iproute2')
      const listing = await output(['dpkg-deb', '--contents', target])
      expect(listing).toMatch(/usr\/bin\/weftd -> \.\.\/lib\/weft\/bin\/weftd$/m)
      expect(listing).toContain(`usr/lib/weft/prebuilds/linux-${architecture.name}/weft.napi.glibc.node`)
      expect(listing).toContain('usr/lib/weft/node_modules/winston')
      expect(listing).not.toMatch(/node-addon-api|usr\/lib\/weft\/docs/)
    },
  )

  it('has the given time even if the clock is behind: RPM, which also has no traces of its builder', async ({
    skip,
  }) => {
    const why = lackOf('rpmbuild')
    skip(why !== undefined, why)
    writeFileSync(join(folder, '.rpmmacros'), '%vendor Somebody\n')
    vi.stubEnv('HOME', folder)
    const name = buildRpm({ ...from(), out: folder })
    const format = '%{vendor}\\n[%{filemtimes}\\n]'
    const told = await output(['rpm', '-qp', '--queryformat', format, join(folder, name)])
    expect([...new Set(told.trim().split('\n'))]).toEqual(['(none)', '4102444800'])
    const docs = await output(['rpm', '-qp', '--docfiles', join(folder, name)])
    expect(docs.split('\n')).toContain('/usr/share/doc/weft/docs/doctor.md')
  })
})

describe('the files for Kubernetes', () => {
  it('select the nodes whose architecture the image has', async () => {
    vi.stubEnv('SOURCE_DATE_EPOCH', '1')
    const [manifest, chart] = [join(folder, 'weft.yaml'), join(folder, 'chart.tgz')]
    const image = { version: was, image: 'a/weft', digest: 'sha256:0', architectures: ['amd64', 'arm'] }
    buildKubernetes({ root: packageRoot, work: join(folder, 'kubernetes'), ...image, manifest, chart })
    vi.unstubAllEnvs()
    const terms = /matchExpressions:\n(( +)- \{.*\}\n(?:\2- \{.*\}\n)*)/.exec(readFileSync(manifest, 'utf8'))?.[1] ?? ''
    expect(terms.trim().split(/\n +/)).toEqual([
      '- { key: kubernetes.io/os, operator: In, values: [linux] }',
      '- { key: kubernetes.io/arch, operator: In, values: [amd64, arm] }',
    ])
    expect(await output(['tar', '-xzOf', chart, 'flannel/templates/_helpers.tpl'])).toContain(
      '(list $linux (dict "key" "kubernetes.io/arch" "operator" "In" "values" (list "amd64" "arm")))',
    )
  })
})

describe('the bundle', () => {
  it('is ASCII and the same program', () => {
    const code = inAscii('`…${"é😀"}` + "é".match(/[à-ý]/)[0] + "😀".match(/[😀]/u)[0]')
    expect(code).toMatch(/^[\0-\x7f]*$/)
    expect(runInNewContext(code)).toBe('…é😀é😀')
    expect(() => inAscii('String.raw`…`')).toThrow(/as an escape/)
  })
})

describe('the list of components', () => {
  it.each([
    ['MIT', { license: { id: 'MIT' } }],
    ['BlueOak-1.0.0', { license: { id: 'BlueOak-1.0.0' } }],
    ['(MIT OR CC0-1.0)', { expression: '(MIT OR CC0-1.0)' }],
    ['Apache-2.0 WITH LLVM-exception', { expression: 'Apache-2.0 WITH LLVM-exception' }],
  ])('has the license in the format of SPDX: %s', (license, told) => {
    const purl = 'pkg:npm/%40a/b@1.0.0'
    expect(library({ name: '@a/b', version: '1.0.0', license })).toMatchObject({ purl, licenses: [told] })
  })

  it('has every Debian package, whatever its name', () => {
    const status = join(folder, 'var/lib/dpkg/status.d')
    mkdirSync(status, { recursive: true })
    for (const name of ['libdb5.3t64', 'libc6'])
      writeFileSync(join(status, name), `Package: ${name}\nVersion: 1:2+b1\nArchitecture: amd64\n`)
    expect(debianPackages(folder).map(({ purl }) => purl)).toEqual([
      'pkg:deb/debian/libc6@1%3A2%2Bb1?arch=amd64&distro=debian-13',
      'pkg:deb/debian/libdb5.3t64@1%3A2%2Bb1?arch=amd64&distro=debian-13',
    ])
  })
})

it('has each document that a message or a help text names', () => {
  const names = new Set<string>()
  for (const name of readdirSync(join(packageRoot, 'src'), { recursive: true, encoding: 'utf8' }).filter((each) =>
    each.endsWith('.ts'),
  ))
    for (const line of readFileSync(join(packageRoot, 'src', name), 'utf8').split('\n'))
      if (!/^\s*(\/\/|\/?\*)/.test(line)) for (const [found] of line.matchAll(/docs\/[\w/-]+\.md/g)) names.add(found)
  expect(names.size).toBeGreaterThan(1)
  expect(Object.keys(documents(packageRoot))).toEqual(
    expect.arrayContaining([...names].map((name) => `usr/share/doc/weft/${name}`)),
  )
})
