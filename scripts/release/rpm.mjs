// rpm.mjs - builds the RPM package of one architecture for Fedora, RHEL, openSUSE and similar distributions: the
// executable, the service and the documents.

import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { date } from './archive.mjs'
import { isPublic } from './documents.mjs'

/** The paths at which the RPM package installs files that the Debian package has elsewhere. */
const PLACES = [
  ['usr/share/zsh/vendor-completions/', 'usr/share/zsh/site-functions/'],
  ['usr/share/doc/weft/copyright', 'usr/share/licenses/weft/LICENCES'],
]
const placeOf = (path) => PLACES.reduce((at, [from, to]) => at.replace(from, to), path)

/**
 * Returns the scripts that rpm runs at installation and removal, made from those of the Debian package. dpkg passes a
 * word such as `remove` as the argument; rpm passes the number of versions that will remain installed.
 */
const scriptsOf = (prerm) => `
%post
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  # The running weftd hands over to the new one. Do not wait, because a weftd whose store does not answer is not ready until it does.
  if [ "$1" -gt 1 ]; then systemctl --no-block try-restart weftd.service || :; fi
fi

%preun
if [ "$1" -eq 0 ]; then set -- remove; fi
${prerm.replace(/^#!.*\n/, '').replaceAll('%', '%%')}
%postun
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
if [ "$1" -eq 0 ]; then rm -rf /run/weft; fi
`

/**
 * Writes the RPM package into the folder `out` and returns its file name. `texts` has the contents of additional files,
 * by their paths in the Debian package.
 */
export function buildRpm({ root, work, build, version, publisher, texts, out }) {
  const { architecture, executable } = build
  const top = join(work, 'rpm')
  const tree = join(top, 'tree')
  const target = architecture.rpm
  rmSync(top, { recursive: true, force: true })
  const files = []
  const put = (path, content, mode = '0644', kind = '') => {
    mkdirSync(dirname(join(tree, path)), { recursive: true })
    if (content !== undefined) writeFileSync(join(tree, path), content)
    const isDocument = path.startsWith('usr/share/doc/')
    files.push(`%attr(${mode},root,root) ${isDocument ? '%doc ' : kind}/${path}`)
  }
  put('usr/bin/weftd', undefined, '0755')
  copyFileSync(executable, join(tree, 'usr/bin/weftd'))
  files.push('/usr/bin/weft')
  execFileSync('ln', ['-s', 'weftd', join(tree, 'usr/bin/weft')])
  put('usr/lib/systemd/system/weftd.service', readFileSync(join(root, 'deploy/weftd.service')))
  put('etc/default/weftd', readFileSync(join(root, 'deploy/deb/default')), '0644', '%config(noreplace) ')
  for (const [path, text] of Object.entries(texts))
    put(placeOf(path), path.endsWith('.gz') ? gzipSync(text, { level: 9 }) : text)
  const scripts = scriptsOf(readFileSync(join(root, 'deploy/deb/prerm'), 'utf8'))
  const spec = join(top, 'weft.spec')
  writeFileSync(
    spec,
    [
      'Name: weft',
      `Version: ${version}`,
      'Release: 1',
      'License: Apache-2.0',
      ...(isPublic(publisher.repository) ? [`URL: ${publisher.repository}`] : []),
      `Packager: ${publisher.maintainer}`,
      'Summary: drop-in replacement for flanneld',
      'AutoReqProv: no',
      'Requires: glibc >= 2.28, libstdc++, libgcc',
      'Recommends: (iptables or nftables)',
      // Only the backend ipsec needs charon, `ip` and `setpriv`.
      'Suggests: strongswan, util-linux, (iproute or iproute2)',
      '%description',
      'Leases a subnet to each container host, and carries packets between hosts inside UDP,',
      'without vxlan in the kernel.',
      scripts,
      '%files',
      ...files,
      '',
    ].join('\n'),
  )
  const macros = {
    _topdir: top,
    buildroot: tree,
    _rpmdir: out,
    _rpmfilename: `weft-${version}.${target}.rpm`,
    // Disable rpmbuild's steps that strip and compress the installed files and search them for dependencies.
    __os_install_post: '%{nil}',
    _build_id_links: 'none',
    debug_package: '%{nil}',
    _binary_payload: 'w9.zstdio',
    use_source_date_epoch_as_buildtime: '1',
    clamp_mtime_to_source_date_epoch: '1',
    _buildhost: 'localhost',
  }
  const defines = Object.entries(macros).flatMap(([name, value]) => ['--define', `${name} ${value}`])
  date(tree)
  execFileSync('rpmbuild', ['-bb', '--quiet', '--noclean', '--target', `${target}-linux`, ...defines, spec], {
    env: { ...process.env, HOME: top }, // ignore the user's ~/.rpmmacros, which may set a vendor or a signature
    stdio: ['ignore', 2, 'inherit'],
  })
  return `weft-${version}.${target}.rpm`
}
