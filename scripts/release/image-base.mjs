// image-base.mjs - collects the files of Debian for the container images: the programs that weft runs, their libraries,
// and the trusted certificate authorities. The images have no package manager, because users do not install packages in
// a container of weft. For architectures without a single-file executable of weft, the images also contain Debian's
// Node.js.

import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { debianSources, made, mmdebstrap } from './inputs.mjs'

/**
 * The Debian release from which the images take programs and libraries. This release gets security updates until 2030.
 */
const DEBIAN = 'trixie'
const PACKAGES = [
  'base-files',
  'busybox',
  'ca-certificates',
  'iproute2',
  'iptables',
  'libgcc-s1',
  'libstdc++6',
  'netbase',
  'nftables',
]
/**
 * The programs of Debian that weft and the script deploy/flanneld.sh run in a container. `ip` sets IPsec policies for
 * charon (strongSwan's IKE daemon) on the host.
 */
const PROGRAMS = ['bin/busybox', 'bin/ip', 'sbin/nft'].concat(
  ['nft', 'legacy'].map((kind) => `sbin/xtables-${kind}-multi`),
)
/**
 * Debian's Node.js, and its parts that Debian has in separate files, for the architectures on which Debian's Node.js
 * runs weft.
 */
const NODE = {
  packages: ['nodejs'],
  programs: ['bin/node'],
  files: /^usr\/share\/nodejs\/(?:acorn|acorn-walk|cjs-module-lexer|minimatch|undici)\/.*\.js$/,
}
const NO_NODE = { packages: [], programs: [], files: /(?!)/ }
/** The busybox commands that the images have, for deploy/flanneld.sh and for users who inspect a container. */
const APPLETS = ['cat', 'cp', 'env', 'grep', 'head', 'id', 'ls', 'ps', 'sh', 'sleep', 'tail', 'test']
const OF_NODE = ['libc.so.6', 'libdl.so.2', 'libgcc_s.so.1', 'libm.so.6', 'libpthread.so.0', 'libstdc++.so.6']
const TEXTS =
  /^(?:etc\/(?:debian_version|ethertypes|protocols|services|os-release)|usr\/lib\/os-release|usr\/share\/common-licenses\/.*|usr\/share\/doc\/[^/]+\/copyright|s?bin|lib(?:64)?)$/
/**
 * iptables has two executables with many names (links). Matches the names that the images do not need, such as
 * arptables and iptables-translate.
 */
const OTHER_NAMES = /\/(?:arptables|ebtables|iptables-xml|ip6?tables(?:-\w+)?-translate|ip6?tables-apply)/
/**
 * Files of Debian packages whose programs the image does not contain. The image contains these files so that its list
 * of packages includes their packages; gcc-14-base has the licenses of GCC's libraries.
 */
const FOR_OWNERS = [
  'usr/lib/os-release',
  'usr/sbin/update-ca-certificates',
  'etc/protocols',
  'usr/share/doc/gcc-14-base/copyright',
]
const AUTHORITIES = 'usr/share/ca-certificates/mozilla'

/** Returns the names of the shared libraries that an ELF file needs. */
const librariesOf = (path) =>
  [...execFileSync('objdump', ['-p', path], { encoding: 'utf8' }).matchAll(/^ +NEEDED +(\S+)$/gm)].map(
    ([, name]) => name,
  )

/**
 * Returns the real paths below `root` of all programs, of iptables' extensions, and of the shared libraries that they
 * need.
 */
function programsIn(root, gnu, names) {
  const libraries = join(root, 'usr/lib', gnu)
  const extensions = join(libraries, 'xtables')
  const found = new Set()
  const add = (path) => {
    const file = realpathSync(path)
    if (found.has(file)) return
    found.add(file)
    for (const name of librariesOf(file)) add(join(libraries, name))
  }
  for (const program of names) add(join(root, 'usr', program))
  for (const name of readdirSync(extensions)) add(join(extensions, name))
  for (const name of OF_NODE) add(join(libraries, name))
  return found
}

/** Lists the Debian packages in a folder of .deb files, each with its description and the paths of its files. */
const packagesIn = (archives) =>
  readdirSync(archives)
    .filter((name) => name.endsWith('.deb'))
    .map((name) => {
      const path = join(archives, name)
      const list = 'dpkg-deb --fsys-tarfile "$0" | tar --list'
      const paths = execFileSync('sh', ['-c', list, path], { encoding: 'utf8', maxBuffer: 2 ** 26 }).split('\n')
      return {
        control: execFileSync('dpkg-deb', ['--field', path], { encoding: 'utf8' }),
        // Some packages list files in /bin, /sbin or /lib. In this Debian release these folders are links to /usr/bin,
        // /usr/sbin and /usr/lib, so adapt the paths.
        paths: paths.map((each) => each.replace(/^\.\//, '').replace(/^(?=s?bin\/|lib(?:64)?\/)/, 'usr/')),
      }
    })

/**
 * Deletes the files in `folder` for which `isKept` returns false, and then the folders that have become empty, except
 * `root`.
 */
function prune(root, folder, isKept) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    if (lstatSync(path).isDirectory()) prune(root, path, isKept)
    else if (!isKept(path)) rmSync(path)
  }
  if (folder !== root && readdirSync(folder).length === 0) rmdirSync(folder)
}

/**
 * Returns a folder with Debian's files for the image of one architecture. Its `var/lib/dpkg/status.d` lists the Debian
 * packages of these files, for programs that scan images for vulnerabilities.
 * @param {import('./architectures.mjs').Architecture} architecture
 */
export const imageBase = ({ debian, gnu, integrity }) => {
  const node = integrity ? NO_NODE : NODE
  const sources = debianSources()
  return made(`${DEBIAN}-image-${debian}${sources.suffix}`, (folder) => {
    // Resolve symbolic links in the folder's own path, because the targets of links inside it are compared as real
    // paths.
    const root = realpathSync(folder)
    const options = ['--variant=extract', `--arch=${debian}`, '--skip=cleanup/apt/cache']
    mmdebstrap(...options, `--include=${[...PACKAGES, ...node.packages].join(',')}`, DEBIAN, root, ...sources.files)
    const packages = packagesIn(join(root, 'var/cache/apt/archives'))
    const programs = programsIn(root, gnu, [...PROGRAMS, ...node.programs])
    const authorities = readdirSync(join(root, AUTHORITIES)).toSorted()
    const trusted = authorities.map((name) => readFileSync(join(root, AUTHORITIES, name), 'utf8')).join('')
    const isProgram = (path) => existsSync(path) && programs.has(realpathSync(path)) && !OTHER_NAMES.test(path)
    const owned = [...[...programs].map((path) => relative(root, path)), ...FOR_OWNERS]
    const wanted = new Set(owned)
    const inside = packages.filter(({ paths }) => paths.some((path) => wanted.has(path) || node.files.test(path)))
    const copyrights = new Set(
      inside.flatMap(({ paths }) => paths.filter((path) => /\/doc\/[^/]+\/copyright$/.test(path))),
    )
    prune(root, root, (path) => {
      const name = relative(root, path)
      if (/\/doc\//.test(name)) return copyrights.has(name)
      return TEXTS.test(name) || node.files.test(name) || isProgram(path)
    })
    const write = (path, text) => {
      mkdirSync(dirname(join(root, path)), { recursive: true })
      writeFileSync(join(root, path), text)
    }
    for (const name of APPLETS) symlinkSync('busybox', join(root, 'usr/bin', name))
    for (const family of ['iptables', 'ip6tables'])
      for (const name of [family, `${family}-save`, `${family}-restore`])
        symlinkSync('xtables-nft-multi', join(root, 'usr/sbin', name))
    for (const name of ['dev', 'proc', 'root', 'run', 'sys', 'tmp']) mkdirSync(join(root, name), { recursive: true })
    chmodSync(join(root, 'tmp'), 0o1777)
    write('etc/ssl/certs/ca-certificates.crt', trusted)
    write('etc/passwd', 'root:x:0:0:root:/root:/bin/sh\n')
    write('etc/group', 'root:x:0:\n')
    for (const { control } of inside)
      write(`var/lib/dpkg/status.d/${/^Package: (.*)$/m.exec(control)[1]}`, `${control}Status: install ok installed\n`)
    symlinkSync('/run', join(root, 'var/run'))
  })
}
