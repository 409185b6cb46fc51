// version.mjs - writes and checks the version of weft in all files that contain the version. `npm run release:cut --
// 0.2.0` writes a new version. `node scripts/release/version.mjs check v0.2.0` fails if the git tag differs from the
// version, or if publisher.json still has placeholders.

import { readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))

/**
 * True if the text is a version of three numbers, such as 0.2.0. npm, dpkg and rpm all accept such versions and order
 * them in the same way.
 */
export const isVersion = (text) => /^(?:0|[1-9]\d{0,8})(?:\.(?:0|[1-9]\d{0,8})){2}$/.test(text)
const isBelow = (one, other) => {
  const [a, b] = [one, other].map((version) => version.split('.').map(Number))
  const at = a.findIndex((number, index) => number !== b[index])
  return at >= 0 && a[at] < b[at]
}

/**
 * The files that contain weft's version, each with the text that precedes the version, and how often the version occurs
 * in the file.
 * @type {readonly (readonly [file: string, before: string, times: number])[]}
 */
export const PLACES = [
  ['package.json', '\n  "version": "', 1],
  ['package-lock.json', '"name": "weft",\n  "version": "', 1],
  ['package-lock.json', '"name": "weft",\n      "version": "', 1],
  ['deploy/Dockerfile', 'org.opencontainers.image.version="', 1],
  ['deploy/kubernetes/kustomization.yaml', 'newTag: ', 1],
  ['deploy/kubernetes/weft.yaml', 'image: weft:', 2],
  ['deploy/charts/weft/Chart.yaml', '\nversion: ', 1],
  ['deploy/charts/weft/Chart.yaml', '\nappVersion: ', 1],
  ['deploy/charts/weft/values.yaml', 'repository: weft\n    tag: ', 1],
  ['README.md', 'localhost/weft:', 1],
  ['docs/kubernetes/from-flannel.md', 'registry.example/weft:', 1],
]
const read = (path) => readFileSync(join(root, path), 'utf8')
export const currentVersion = () => JSON.parse(read('package.json')).version

/** Lists the places in files that contain a version other than `version`, one line each. */
export const otherVersions = (version) =>
  PLACES.filter(([path, before, times]) => read(path).split(before + version).length !== times + 1).map(
    ([path, before]) => `${path}: ${before.trim()} is not followed by ${version}`,
  )

/** Returns the version, the date and the text of the topmost section in CHANGELOG.md. */
function firstSection() {
  const [, version, day, text] = /^## (\S+) \((.*?)\)\n(.*?)(?=^## |$(?![^]))/ms.exec(read('CHANGELOG.md')) ?? []
  if (!text) throw new Error('CHANGELOG.md does not begin with a section `## VERSION (unreleased)`')
  return { version, day, text }
}

/**
 * Makes a new version: writes the version into all files of PLACES, and the version and today's date into the topmost
 * heading of CHANGELOG.md.
 */
function cut(version, day = new Date().toISOString().slice(0, 10)) {
  if (!isVersion(version)) throw new Error(`${JSON.stringify(version)} is not a version such as 0.2.0`)
  const section = firstSection()
  if (section.day !== 'unreleased')
    throw new Error(`CHANGELOG.md has no unreleased section: it begins with ${section.version}, which has a date`)
  for (const [, released] of read('CHANGELOG.md').matchAll(/^## (\S+) \(\d{4}-/gm))
    if (!isBelow(released, version))
      throw new Error(`${version} must be later than ${released}, which is already released`)
  const before = currentVersion()
  const wrong = otherVersions(before)
  if (wrong.length > 0) throw new Error(wrong.join('; '))
  for (const [path, words] of PLACES)
    writeFileSync(join(root, path), read(path).replaceAll(words + before, words + version))
  const heading = `## ${section.version} (unreleased)`
  writeFileSync(join(root, 'CHANGELOG.md'), read('CHANGELOG.md').replace(heading, `## ${version} (${day})`))
}

const publisher = () => JSON.parse(read('scripts/release/publisher.json'))

/**
 * Returns the reasons, one line each, why this clone must not be published with the git tag `tag` and the publisher's
 * settings `by`.
 */
export function whyNot(tag, by = publisher()) {
  const version = currentVersion()
  const { day, version: newest } = firstSection()
  return [
    ...(tag === `v${version}` ? [] : [`the tag ${tag} is not v${version}, which package.json says`]),
    ...otherVersions(version),
    ...(newest === version && /^\d{4}-\d\d-\d\d$/.test(day)
      ? []
      : [`CHANGELOG.md begins with ${newest} (${day}); run npm run release:cut`]),
    ...Object.entries(by)
      .filter(([name, value]) => value.includes('localhost') || (name === 'npm' && !/^@[\w.-]+\/weft$/.test(value)))
      .map(([name, value]) => `scripts/release/publisher.json: ${name} is still ${value}`),
  ]
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [command, word = ''] = process.argv.slice(2)
  try {
    if (command === 'cut') cut(word)
    else if (command === 'check') {
      const reasons = whyNot(word)
      if (reasons.length > 0) throw new Error(reasons.join('\nrelease: '))
    } else throw new Error('Usage: version.mjs cut VERSION, or version.mjs check TAG')
  } catch (error) {
    process.stderr.write(`release: ${error.message}\n`)
    process.exitCode = 1
  }
}
