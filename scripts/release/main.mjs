// main.mjs - `npm run release`: makes the files to publish in the folder release/: executables, packages, container
// images, files for Kubernetes, checksums and lists of components.
//
// The release is reproducible: the same commit gives the same bytes, in any folder and for any user.

import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createProgress } from '../progress.mjs'
import { TASKS } from '../tasks.mjs'
import { buildAddon, buildMuslAddon } from './addon.mjs'
import { ARCHITECTURES, NODE_VERSION } from './architectures.mjs'
import { sha256 } from './archive.mjs'
import { bundle } from './bundle.mjs'
import { buildDeb } from './deb.mjs'
import { documents } from './documents.mjs'
import { buildExecutable } from './executable.mjs'
import { fetchInputs, partial } from './fetch.mjs'
import { imageBase } from './image-base.mjs'
import { buildImage } from './image.mjs'
import { debianSources, nodeRelease } from './inputs.mjs'
import { buildKubernetes } from './kubernetes.mjs'
import { compiled, compiledForMusl, debianPackages, library, runtime } from './materials.mjs'
import { buildNpm, dependencies } from './npm.mjs'
import { OptionError, readOptions } from './options.mjs'
import { buildRpm } from './rpm.mjs'
import { isVersion } from './version.mjs'

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const release = join(root, 'release')
/**
 * The temporary folder in which the release is made. The folder replaces release/ only after all files are complete.
 */
const out = join(root, 'build/release/new')
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
const { image: imageName, architectures } = wanted()
const ofFile = JSON.parse(readFileSync(join(root, 'scripts/release/publisher.json'), 'utf8'))
const publisher = { ...ofFile, image: imageName ?? ofFile.image }
const lacks = partial(architectures)
const said = (file, ...args) => execFileSync(file, args, { cwd: root, encoding: 'utf8' })

/** Reads the command line. Ends this process if an option is invalid. */
function wanted() {
  try {
    return readOptions(process.argv.slice(2))
  } catch (error) {
    if (!(error instanceof OptionError)) throw error
    process.stderr.write(`release: ${error.message}\n`)
    process.exit(2)
  }
}

function releaseNotes() {
  const [, text] =
    new RegExp(`^## ${version.replaceAll('.', '\\.')} [^\\n]*\\n(.*?)(?=^## |$(?![^]))`, 'ms').exec(
      read('CHANGELOG.md'),
    ) ?? []
  if (!text) throw new Error(`CHANGELOG.md has no section about ${version}`)
  return `# weft ${version}\n\n${lacks === undefined ? '' : `${lacks}\n\n`}${text.trim()}\n`
}
const read = (path) => readFileSync(join(root, path), 'utf8')

/**
 * Returns the license texts of all software in the executable. If Debian's nodejs runs weft, the license of Node.js is
 * left out, because Debian's package contains it.
 */
function licences(packages, hasNode = true) {
  const textOf = ({ folder }) => {
    const file = readdirSync(join(root, folder)).find((name) => /^licen[cs]e/i.test(name))
    return file ? read(join(folder, file)) : undefined
  }
  const parts = packages.map((each) => [
    `${each.name} ${each.version} (${each.license})`,
    textOf(each) ?? `The package contains no license text; it names the license ${each.license}.`,
  ])
  const node = readFileSync(join(nodeRelease(ARCHITECTURES[0]), 'LICENSE'), 'utf8')
  const all = [
    [`weft ${version} (Apache-2.0)`, read('LICENSE')],
    ...parts,
    ...(hasNode ? [[`Node.js ${NODE_VERSION} and its components`, node]] : []),
  ]
  return all.map(([title, text]) => `${'='.repeat(78)}\n${title}\n${'='.repeat(78)}\n\n${text.trim()}\n`).join('\n')
}

/** Writes the list of the software components in one file of the release, in the format CycloneDX 1.6. */
function writeMaterials(name, description, components) {
  const component = { type: 'application', name: 'weft', version, description }
  const bom = { bomFormat: 'CycloneDX', specVersion: '1.6', version: 1, metadata: { component }, components }
  writeFileSync(join(out, `${name}.cdx.json`), `${JSON.stringify(bom, null, 2)}\n`)
}

/**
 * Replaces the folder release/ by the new release. The old folder is renamed first, and deleted only after the new
 * folder is in place, so that release/ is never incomplete.
 */
function publish() {
  const before = join(root, 'build/release/before')
  rmSync(before, { recursive: true, force: true })
  if (existsSync(release)) renameSync(release, before)
  renameSync(out, release)
  rmSync(before, { recursive: true, force: true })
}

/** Returns the folder for the intermediate files of one part of the release. */
function below(name) {
  const folder = join(root, 'build/release', name)
  mkdirSync(folder, { recursive: true })
  return folder
}

const git = (...args) => spawnSync('git', args, { cwd: root, encoding: 'utf8' })

/**
 * Returns the time that all files of the release get, in seconds since 1970: SOURCE_DATE_EPOCH if it is set
 * (reproducible-builds.org), else the time of the commit.
 */
function time() {
  const { stdout, stderr } = git('log', '-1', '--format=%ct')
  const seconds = process.env.SOURCE_DATE_EPOCH || stdout?.trim()
  if (!seconds) throw new Error(`git shows no commit (${stderr?.trim()}); set SOURCE_DATE_EPOCH to seconds since 1970`)
  if (!/^\d+$/.test(seconds)) throw new Error(`SOURCE_DATE_EPOCH is not seconds since 1970: ${seconds}`)
  return seconds
}

const official = architectures.filter(({ integrity }) => integrity !== undefined)
const withMusl = architectures.filter(({ musl }) => musl !== undefined)
const total = 6 + architectures.length * 3 + official.length * 2 + withMusl.length
const progress = createProgress('release', { total, pace: 'even' })
let steps = 0

/** Shows the next step of the release: in the progress bar, or as a line if stderr is not a terminal. */
function step(name) {
  progress.now(name)
  progress.plain(`release: ${++steps} of ${total}, ${Math.round(performance.now() / 1000)} s: ${name}`)
}

try {
  process.umask(0o022) // so that folders in the packages get mode 755
  if (!isVersion(version)) throw new Error(`package.json: ${JSON.stringify(version)} is not a version such as 0.2.0`)
  process.env.SOURCE_DATE_EPOCH = time()
  const { stdout, stderr, status } = git('status', '--porcelain')
  const changes = status === 0 ? stdout.trimEnd() : `git cannot list them: ${stderr?.trim()}`
  rmSync(out, { recursive: true, force: true })
  mkdirSync(out, { recursive: true })
  step('TypeScript and the page')
  for (const [file, ...words] of TASKS.build.commands) {
    const path = file === 'node' ? process.execPath : join(root, 'node_modules/.bin', file)
    execFileSync(path, words, { cwd: root, stdio: ['ignore', 2, 'inherit'] })
  }
  step('the bundle')
  const { code, lines, packages } = await bundle(root)
  const tool = (...words) => said(process.execPath, 'bin/weft', ...words)
  const texts = {
    'usr/share/man/man8/weft.8.gz': tool('man'),
    'usr/share/man/man8/weftd.8.gz': tool('man', 'weftd'),
    'usr/share/bash-completion/completions/weft': tool('completion', 'bash'),
    'usr/share/bash-completion/completions/weftd': tool('completion', 'bash', 'weftd'),
    'usr/share/zsh/vendor-completions/_weft': tool('completion', 'zsh'),
    'usr/share/zsh/vendor-completions/_weftd': tool('completion', 'zsh', 'weftd'),
    'usr/share/fish/vendor_completions.d/weft.fish': tool('completion', 'fish'),
    'usr/share/fish/vendor_completions.d/weftd.fish': tool('completion', 'fish', 'weftd'),
    'usr/share/doc/weft/changelog.gz': read('CHANGELOG.md'),
    ...documents(root),
  }
  fetchInputs(architectures, step)
  const addons = []
  for (const architecture of architectures) {
    step(`the addon for ${architecture.debian}`)
    const addon = join(below(architecture.name), 'weft.node')
    await buildAddon(root, architecture, addon)
    const muslAddon = architecture.musl ? join(below(architecture.name), 'weft-musl.node') : undefined
    if (muslAddon !== undefined) {
      step(`the addon for ${architecture.debian} with musl`)
      await buildMuslAddon(root, architecture, muslAddon)
    }
    addons.push({ architecture, addon, muslAddon })
  }
  step('the npm package')
  const npm = buildNpm({
    root,
    work: below('npm'),
    publisher,
    builds: addons,
    target: join(out, `weft-npm-${version}.tgz`),
  })
  const modules = dependencies(root)
  writeMaterials('weft-npm', 'npm package', [
    ...modules.map(library),
    ...compiled(),
    ...(withMusl.length > 0 ? compiledForMusl() : []),
  ])
  const builds = addons.map(({ architecture, addon }) => {
    const work = below(architecture.name)
    const { name, debian, integrity } = architecture
    const executable = integrity ? join(out, `weftd-linux-${name}`) : undefined
    if (executable !== undefined) {
      step(`the executable for ${debian}`)
      buildExecutable({ root, work, architecture, version, code, lines, addon, target: executable })
      chmodSync(executable, 0o755)
    }
    const components = executable ? [...packages.map(library), ...runtime()] : [...modules.map(library), ...compiled()]
    const build = {
      architecture,
      executable,
      addon,
      npm,
      components,
      licences: executable ? licences(packages) : licences(modules, false),
    }
    const from = {
      root,
      work,
      build,
      version,
      publisher,
      texts: { ...texts, 'usr/share/doc/weft/copyright': build.licences },
    }
    step(`the Debian package for ${debian}`)
    buildDeb({ ...from, target: join(out, `weft_${version}_${debian}.deb`) })
    if (architecture.rpm) {
      step(`the RPM package for ${debian}`)
      buildRpm({ ...from, out })
    }
    writeMaterials(executable ? `weftd-linux-${name}` : `weft-deb-${debian}`, `linux ${name}`, components)
    return build
  })
  step('the images')
  const image = join(out, `weft-image-${version}.tar`)
  const digest = buildImage({ root, work: below('image'), version, publisher, builds, target: image })
  for (const { architecture, components } of builds)
    writeMaterials(`weft-image-${architecture.debian}`, `image for linux ${architecture.debian}`, [
      ...components,
      ...debianPackages(imageBase(architecture)),
    ])
  step('the files for Kubernetes')
  buildKubernetes({
    root,
    work: below('kubernetes'),
    version,
    image: publisher.image,
    digest,
    architectures: architectures.map(({ platform }) => platform.architecture),
    manifest: join(out, 'weft.yaml'),
    chart: join(out, `weft-chart-${version}.tgz`),
  })
  step('notes and checksums')
  writeFileSync(join(out, 'LICENCES'), licences(packages))
  writeFileSync(join(out, 'NOTES.md'), releaseNotes())
  const names = readdirSync(out).toSorted()
  const sums = names.map((name) => `${sha256(readFileSync(join(out, name)))}  ${name}\n`)
  writeFileSync(join(out, 'SHA256SUMS'), sums.join(''))
  publish()
  progress.end()
  process.stdout.write(said('ls', '-l', release))
  if (lacks !== undefined) process.stderr.write(`release: ${lacks}\n`)
  if (!debianSources().isSecure)
    process.stderr.write(
      "release: do not publish it, because WEFT_DEBIAN_SOURCES names no suite with Debian's security updates\n",
    )
  if (changes)
    process.stderr.write(`release: do not publish it, because it contains uncommitted changes:\n${changes}\n`)
} catch (error) {
  progress.end()
  const remedy = error.code === 'EACCES' ? '; its owner, perhaps root, has to remove it' : ''
  process.stderr.write(`release: ${error.message}${remedy}\n`)
  process.exitCode = 1
}
