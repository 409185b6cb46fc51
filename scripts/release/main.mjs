// main.mjs - `npm run release`: makes the files to publish in the folder release/: executables, packages, container
// images, files for Kubernetes, checksums and lists of components.
//
// The release is reproducible: the same commit gives the same bytes, in any folder and for any user.

import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { createProgress } from '../progress.mjs'
import { TASKS } from '../tasks.mjs'
import { buildAddon } from './addon.mjs'
import { sha256 } from './archive.mjs'
import { bundle } from './bundle.mjs'
import { buildDeb } from './deb.mjs'
import { documents } from './documents.mjs'
import { buildExecutable } from './executable.mjs'
import { imageBase } from './image-base.mjs'
import { buildImage } from './image.mjs'
import { ARCHITECTURES, NODE_VERSION, nodeRelease } from './inputs.mjs'
import { buildKubernetes } from './kubernetes.mjs'
import { compiled, debianPackages, library, runtime } from './materials.mjs'
import { buildNpm, dependencies } from './npm.mjs'
import { buildRpm } from './rpm.mjs'
import { isVersion } from './version.mjs'

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const release = join(root, 'release')
/**
 * The temporary folder in which the release is made. The folder replaces release/ only after all files are complete.
 */
const out = join(root, 'build/release/new')
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
const publisher = { ...JSON.parse(readFileSync(join(root, 'scripts/release/publisher.json'), 'utf8')), ...wanted() }
const said = (file, ...args) => execFileSync(file, args, { cwd: root, encoding: 'utf8' })

/**
 * Reads the command line. `--image REGISTRY/weft` sets the image name in the manifest and the chart, in place of the
 * name in publisher.json.
 */
function wanted() {
  const fail = (message) => {
    process.stderr.write(`release: ${message}; write --image REGISTRY/weft, such as --image ghcr.io/somebody/weft\n`)
    process.exit(2)
  }
  let image
  try {
    ;({ image } = parseArgs({ options: { image: { type: 'string' } } }).values)
  } catch (error) {
    fail(error.message)
  }
  if (image === undefined) return {}
  // The image name must contain no tag, because weft's version is appended as the tag. The pattern follows the grammar
  // of image names in the project distribution/reference.
  if (!/^[a-z\d](?:[a-z\d.-]*[a-z\d])?(?::\d+)?(?:\/[a-z\d]+(?:(?:[._]|__|-+)[a-z\d]+)*)+$/.test(image))
    fail(`${JSON.stringify(image)} is not the name of an image without a tag`)
  return { image }
}

function releaseNotes() {
  const [, text] =
    new RegExp(`^## ${version.replaceAll('.', '\\.')} [^\\n]*\\n(.*?)(?=^## |$(?![^]))`, 'ms').exec(
      read('CHANGELOG.md'),
    ) ?? []
  if (!text) throw new Error(`CHANGELOG.md has no section about ${version}`)
  return `# weft ${version}\n\n${text.trim()}\n`
}
const read = (path) => readFileSync(join(root, path), 'utf8')

/** Returns the license texts of all software in the executable. */
function licences(packages) {
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
    [`Node.js ${NODE_VERSION} and its components`, node],
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

const progress = createProgress('release', { total: 6 + ARCHITECTURES.length * 4, pace: 'even' })
try {
  process.umask(0o022) // so that folders in the packages get mode 755
  if (!isVersion(version)) throw new Error(`package.json: ${JSON.stringify(version)} is not a version such as 0.2.0`)
  process.env.SOURCE_DATE_EPOCH = time()
  const { stdout, stderr, status } = git('status', '--porcelain')
  const changes = status === 0 ? stdout.trimEnd() : `git cannot list them: ${stderr?.trim()}`
  rmSync(out, { recursive: true, force: true })
  mkdirSync(out, { recursive: true })
  progress.now('TypeScript and the page')
  for (const [file, ...words] of TASKS.build.commands) {
    const path = file === 'node' ? process.execPath : join(root, 'node_modules/.bin', file)
    execFileSync(path, words, { cwd: root, stdio: ['ignore', 2, 'inherit'] })
  }
  progress.now('the bundle')
  const { code, lines, packages } = await bundle(root)
  const tool = (...words) => said(process.execPath, 'bin/weft', ...words)
  const texts = {
    'usr/share/man/man8/weft.8.gz': tool('man'),
    'usr/share/man/man8/weftd.8.gz': tool('man', 'weftd'),
    'usr/share/bash-completion/completions/weft': tool('completion', 'bash'),
    'usr/share/zsh/vendor-completions/_weft': tool('completion', 'zsh'),
    'usr/share/fish/vendor_completions.d/weft.fish': tool('completion', 'fish'),
    'usr/share/doc/weft/changelog.gz': read('CHANGELOG.md'),
    'usr/share/doc/weft/copyright': licences(packages),
    ...documents(root),
  }
  const builds = ARCHITECTURES.map((architecture) => {
    const work = join(root, 'build/release', architecture.name)
    const addon = join(work, 'weft.node')
    const executable = join(out, `weftd-linux-${architecture.name}`)
    mkdirSync(work, { recursive: true })
    progress.now(`the addon for ${architecture.name}`)
    buildAddon(root, architecture, addon)
    progress.now(`the executable for ${architecture.name}`)
    buildExecutable({ root, work, architecture, version, code, lines, addon, target: executable })
    chmodSync(executable, 0o755)
    progress.now(`the Debian package for ${architecture.name}`)
    const target = join(out, `weft_${version}_${architecture.debian}.deb`)
    buildDeb({ root, work, architecture, version, publisher, executable, texts, target })
    progress.now(`the RPM package for ${architecture.name}`)
    buildRpm({ root, work, architecture, version, publisher, executable, texts, out })
    writeMaterials(`weftd-linux-${architecture.name}`, `linux ${architecture.name}`, [
      ...packages.map(library),
      ...runtime(),
    ])
    return { architecture, executable, addon }
  })
  const below = (name) => {
    const folder = join(root, 'build/release', name)
    mkdirSync(folder, { recursive: true })
    return folder
  }
  progress.now('the npm package')
  const addons = Object.fromEntries(builds.map(({ architecture, addon }) => [architecture.name, addon]))
  buildNpm({ root, work: below('npm'), publisher, addons, target: join(out, `weft-npm-${version}.tgz`) })
  writeMaterials('weft-npm', 'npm package', [...dependencies(root).map(library), ...compiled()])
  progress.now('the images')
  const image = join(out, `weft-image-${version}.tar`)
  const from = { root, work: below('image'), version, publisher, licences: licences(packages), builds, target: image }
  const digest = buildImage(from)
  for (const { architecture } of builds)
    writeMaterials(`weft-image-${architecture.debian}`, `image for linux ${architecture.debian}`, [
      ...packages.map(library),
      ...runtime(),
      ...debianPackages(imageBase(architecture)),
    ])
  progress.now('the files for Kubernetes')
  buildKubernetes({
    root,
    work: below('kubernetes'),
    version,
    image: publisher.image,
    digest,
    manifest: join(out, 'weft.yaml'),
    chart: join(out, `weft-chart-${version}.tgz`),
  })
  progress.now('notes and checksums')
  writeFileSync(join(out, 'LICENCES'), licences(packages))
  writeFileSync(join(out, 'NOTES.md'), releaseNotes())
  const names = readdirSync(out).toSorted()
  const sums = names.map((name) => `${sha256(readFileSync(join(out, name)))}  ${name}\n`)
  writeFileSync(join(out, 'SHA256SUMS'), sums.join(''))
  publish()
  progress.end()
  process.stdout.write(said('ls', '-l', release))
  if (changes)
    process.stderr.write(`release: do not publish it, because it contains uncommitted changes:\n${changes}\n`)
} catch (error) {
  progress.end()
  const remedy = error.code === 'EACCES' ? '; its owner, perhaps root, has to remove it' : ''
  process.stderr.write(`release: ${error.message}${remedy}\n`)
  process.exitCode = 1
}
