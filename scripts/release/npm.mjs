// npm.mjs - builds the npm package for the release: the files of `npm pack`, all npm dependencies, and the compiled
// addon for each architecture.
//
// Users can install the package without access to the npm registry and with `--ignore-scripts`. The dependencies have
// the versions of package-lock.json.

import { execFileSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { gzip, tarOf } from './archive.mjs'
import { prebuiltAddon } from './program.mjs'

/**
 * False for type declarations, source maps and manuals, which weft does not need at run time. License files are always
 * kept.
 */
const isKept = (path) => /^licen[cs]e/i.test(basename(path)) || !/\.(?:[cm]?ts|map|md|markdown)$/i.test(path)

/**
 * Lists the direct and indirect npm dependencies, each with its name, version, license and folder, in the same form as
 * the list of bundle.mjs.
 */
export function dependencies(root) {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  return Object.entries(packages)
    .filter(([folder, { dev, peer }]) => folder !== '' && !dev && !peer && existsSync(join(root, folder)))
    .map(([folder, { version, license }]) => ({
      name: folder.slice(folder.lastIndexOf('node_modules/') + 13),
      version,
      license,
      folder,
    }))
}

/**
 * Makes the package.json of the release. It has the exact versions of the bundled dependencies, and no npm script
 * except the script that runs at installation.
 */
function manifest(root, publisher, packages) {
  const { devDependencies: _, ...own } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  const versions = new Map(packages.map(({ folder, version }) => [folder, version]))
  const exact = Object.fromEntries(
    Object.keys(own.dependencies).map((name) => [name, versions.get(`node_modules/${name}`)]),
  )
  return {
    ...own,
    name: publisher.npm,
    homepage: `${publisher.repository}#readme`,
    bugs: `${publisher.repository}/issues`,
    repository: { type: 'git', url: `git+${publisher.repository}.git` },
    scripts: { install: own.scripts.install },
    dependencies: exact,
    bundleDependencies: Object.keys(exact),
  }
}

/**
 * Writes the npm package with the addons of all architectures to the file `target`, and returns the folder with its
 * files.
 * @param {{ root: string, work: string, publisher: typeof import('./publisher.json'), builds: readonly { architecture:
 *   import('./architectures.mjs').Architecture, addon: string, muslAddon?: string }[], target: string }} from
 */
export function buildNpm({ root, work, publisher, builds, target }) {
  const tree = join(work, 'package')
  rmSync(tree, { recursive: true, force: true })
  const put = (from, to) => {
    mkdirSync(dirname(join(tree, to)), { recursive: true })
    cpSync(from, join(tree, to))
  }
  const listing = ['pack', '--dry-run', '--json', '--ignore-scripts', '--loglevel=silent']
  const [{ files }] = JSON.parse(execFileSync('npm', listing, { cwd: root, encoding: 'utf8' }))
  for (const { path, mode } of files) {
    if (path.startsWith('prebuilds/')) continue // a prebuilt addon of this machine
    put(join(root, path), path)
    chmodSync(join(tree, path), mode & 0o111 ? 0o755 : 0o644)
  }
  const packages = dependencies(root)
  for (const { folder } of packages)
    cpSync(join(root, folder), join(tree, folder), {
      recursive: true,
      // Skip node_modules folders inside a dependency, because `packages` has a separate entry for each nested package
      // that is needed.
      filter: (path) => isKept(path) && !path.slice(join(root, folder).length).split('/').includes('node_modules'),
    })
  execFileSync('chmod', ['-R', 'u+rwX,go=u-w', tree])
  for (const { architecture, addon, muslAddon } of builds) {
    put(addon, prebuiltAddon(architecture))
    if (muslAddon !== undefined) put(muslAddon, prebuiltAddon(architecture, 'musl'))
  }
  writeFileSync(join(tree, 'package.json'), `${JSON.stringify(manifest(root, publisher, packages), null, 2)}\n`)
  writeFileSync(target, gzip(tarOf(work, 'package')))
  return tree
}
