// deb.mjs - builds the Debian package of one architecture: the program, the service and the documents.

import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { DEBIAN_NODE } from './architectures.mjs'
import { date } from './archive.mjs'
import { isPublic } from './documents.mjs'
import { putProgram } from './program.mjs'

/** Returns the Debian packages that weft needs: the libraries for the Node.js in the executable, or Debian's nodejs. */
const dependsOf = ({ integrity, glibc }) =>
  [
    `libc6 (>= ${glibc.join('.')})`,
    ...(integrity ? ['libstdc++6', 'libgcc-s1 | libgcc1'] : [`nodejs (>= ${DEBIAN_NODE})`]),
  ].join(', ')
const RECOMMENDS = 'iptables | nftables'
/** The packages that only the backend `ipsec` needs: charon, and `ip`, which sets the kernel's IPsec policies. */
const SUGGESTS = 'strongswan-charon, strongswan-swanctl, iproute2'
const SCRIPTS = ['postinst', 'prerm', 'postrm']

/**
 * Returns the installed size of a package in KiB for the package's control file. A folder counts as 1 KiB, as in
 * dpkg-gencontrol, because its real size depends on the file system.
 */
const installedSize = (tree) =>
  readdirSync(tree, { recursive: true, withFileTypes: true })
    .map((each) => (each.isFile() ? Math.ceil(statSync(join(each.parentPath, each.name)).size / 1024) : 1))
    .reduce((sum, size) => sum + size, 0)

/**
 * Writes the Debian package to the file `target`. `build` is the program (program.mjs). `texts` are the contents of
 * additional files, by their paths in the package.
 */
export function buildDeb({ root, work, build, version, publisher, texts, target }) {
  const { architecture } = build
  const tree = join(work, 'deb')
  rmSync(tree, { recursive: true, force: true })
  const put = (path, content, mode = 0o644) => {
    mkdirSync(dirname(join(tree, path)), { recursive: true })
    writeFileSync(join(tree, path), content)
    chmodSync(join(tree, path), mode)
  }
  putProgram(build, { tree, bin: 'usr/bin', lib: 'usr/lib/weft', names: ['weftd', 'weft'] })
  // Put the systemd unit into /lib, because Debian 11 may have separate / and /usr, and systemd then does not search
  // /usr/lib.
  put('lib/systemd/system/weftd.service', readFileSync(join(root, 'deploy/weftd.service')))
  // The script postinst copies this file to /etc/default/weftd at the first installation. The package does not contain
  // /etc/default/weftd itself (a conffile). Every administrator changes that file, so dpkg would ask a question at each
  // upgrade whose package also changes the file, and such an upgrade would fail without a terminal.
  put('usr/share/weft/default', readFileSync(join(root, 'deploy/deb/default')))
  for (const [path, text] of Object.entries(texts))
    put(path, path.endsWith('.gz') ? gzipSync(text, { level: 9 }) : text)
  const size = installedSize(tree)
  put(
    'DEBIAN/control',
    [
      'Package: weft',
      `Version: ${version}`,
      `Architecture: ${architecture.debian}`,
      `Installed-Size: ${size}`,
      `Depends: ${dependsOf(architecture)}`,
      `Recommends: ${RECOMMENDS}`,
      `Suggests: ${SUGGESTS}`,
      'Section: net',
      'Priority: optional',
      `Maintainer: ${publisher.maintainer}`,
      ...(isPublic(publisher.repository) ? [`Homepage: ${publisher.repository}`] : []),
      'Description: drop-in replacement for flanneld',
      ' Leases a subnet to each container host, and carries packets between hosts inside UDP, without vxlan in the kernel.',
      '',
    ].join('\n'),
  )
  for (const name of SCRIPTS) put(`DEBIAN/${name}`, readFileSync(join(root, 'deploy/deb', name)), 0o755)
  date(tree)
  execFileSync('dpkg-deb', ['--root-owner-group', '-Zxz', '-z2', '--build', tree, target], {
    stdio: ['ignore', 2, 'inherit'],
  })
}
