// documents.mjs - collects the documents for the Debian and the RPM package. In the package the documents' relative
// paths are the same as in the repository, so paths in weft's messages stay valid.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/**
 * The folder for documents in a package. Paths that weft's messages contain, such as `docs/doctor.md`, are relative to
 * this folder.
 */
const FOLDER = 'usr/share/doc/weft'
const TOP = ['README.md', 'ARCHITECTURE.md', 'SECURITY.md']

/**
 * Returns the text of each document by its path in the package, without pictures, as in the npm package.
 * @param {string} root
 * @returns {Record<string, string>}
 */
export function documents(root) {
  const below = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.md'),
  )
  const names = [...TOP, ...below.map((name) => join('docs', name))].toSorted((a, b) => (a < b ? -1 : 1))
  return Object.fromEntries(names.map((name) => [join(FOLDER, name), readFileSync(join(root, name), 'utf8')]))
}

/**
 * True if the URL is on a public host. False for the placeholder in publisher.json, which is on localhost until the
 * publisher replaces it.
 * @param {string} url
 */
export const isPublic = (url) => new URL(url).hostname !== 'localhost'
