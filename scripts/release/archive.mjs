// archive.mjs - makes reproducible tar and gzip files: their bytes depend only on the names, modes and contents of the
// packed files.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex')

/**
 * Returns a tar archive of a folder, or of only `names` in the folder. All entries belong to root and have the time
 * SOURCE_DATE_EPOCH.
 */
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
 * Sets the times of a folder and of all files in it to SOURCE_DATE_EPOCH. dpkg-deb and rpmbuild change only times after
 * SOURCE_DATE_EPOCH. So an earlier time, from a clock that was wrong, would make the package differ.
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

/** Compresses with gzip. The gzip header contains no file name and no time, so that equal input gives equal output. */
export const gzip = (bytes) => gzipSync(bytes, { level: 9 })
