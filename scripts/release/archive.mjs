// archive.mjs - reproducible tar and gzip: the bytes depend only on names, modes and contents.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex')

/** Returns a tar of a folder, or of `names` in it. All files belong to root and have the time SOURCE_DATE_EPOCH. */
export const tarOf = (folder, ...names) =>
  execFileSync(
    'tar',
    [
      '--create',
      '--sort=name',
      '--format=gnu',
      '--owner=0',
      '--group=0',
      '--numeric-owner',
      `--mtime=@${process.env.SOURCE_DATE_EPOCH}`,
      '--directory',
      folder,
      ...(names.length > 0 ? names : ['.']),
    ],
    { maxBuffer: 2 ** 30 },
  )

/**
 * Sets the time of a folder and everything in it to SOURCE_DATE_EPOCH. dpkg-deb and rpmbuild do that only for later times. With a wrong clock
 * there may be earlier times.
 */
export const date = (folder) =>
  execFileSync('find', [
    folder,
    '-exec',
    'touch',
    '--no-dereference',
    `--date=@${process.env.SOURCE_DATE_EPOCH}`,
    '{}',
    '+',
  ])

/** Compresses with gzip, without a file name and a time. */
export const gzip = (bytes) => gzipSync(bytes, { level: 9 })
