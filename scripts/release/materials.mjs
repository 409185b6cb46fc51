// materials.mjs - what is inside the files of a release, as CycloneDX 1.6 has components (cyclonedx.org/docs/1.6/json).

import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { NODE_VERSION } from './inputs.mjs'

/** SPDX names one licence by an id; of several, or of one with an exception, it has an expression. */
const licencesOf = (license) =>
  /^[\w.+-]+$/.test(license) ? [{ license: { id: license } }] : [{ expression: license }]

/** A package of npm's. */
export const library = ({ name, version, license }) => ({
  type: 'library',
  name,
  version,
  licenses: licencesOf(license),
  purl: `pkg:npm/${name.replace('@', '%40')}@${version}`,
})

/** What an executable holds beside packages. */
export const runtime = () => [
  { type: 'application', name: 'node', version: NODE_VERSION, purl: `pkg:generic/node@${NODE_VERSION}` },
  ...compiled(),
]

/** What an addon holds. */
export const compiled = () => [
  {
    type: 'library',
    name: 'libstdc++',
    version: execFileSync('g++', ['-dumpfullversion'], { encoding: 'utf8' }).trim(),
    description: 'linked into the addon',
  },
]

/** The packages of Debian of which something is in `folder`, as its var/lib/dpkg/status.d tells. */
export const debianPackages = (folder) =>
  readdirSync(join(folder, 'var/lib/dpkg/status.d'))
    .toSorted()
    .map((file) => {
      const text = readFileSync(join(folder, 'var/lib/dpkg/status.d', file), 'utf8')
      const field = (name) => new RegExp(`^${name}: (.*)$`, 'm').exec(text)?.[1] ?? ''
      const [name, version] = [field('Package'), field('Version')]
      const purl = `pkg:deb/debian/${name}@${encodeURIComponent(version)}?arch=${field('Architecture')}&distro=debian-13`
      return { type: 'library', name, version, purl }
    })
