// lint-keys.mjs - finds maps and sets whose keys can be bigints, such as IPv6 addresses.
//
// V8 hashes only the low 64 bits of a bigint. These bits are equal in the first addresses of all IPv6 subnets, and in
// the addresses of hosts that are each `::1` of a network. So filling a map with n such keys takes time proportional to
// n squared. The function addressKey of src/net/address.ts makes a key from an address.
//
// `lint-keys.mjs [FOLDER]` checks the project FOLDER/tsconfig.json. The types come from the compiler, so the program
// also finds a set whose type is not written out. TypeScript 7 has no stable interface for programs yet, so a new
// version of TypeScript may need changes in this file.

import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { isNewExpression } from 'typescript/unstable/ast/is'
import { API, TypeFlags } from 'typescript/unstable/sync'

const TOP = resolve(process.argv[2] ?? join(dirname(fileURLToPath(import.meta.url)), '..'))
const FOLDERS = ['src', 'bench', 'lab'].map((name) => join(TOP, name, '/'))
const COLLECTIONS = new Set(['Map', 'Set'])
const BIGINT = TypeFlags.BigInt | TypeFlags.BigIntLiteral

/** Lists the expressions `new Map(...)` and `new Set(...)` in a syntax tree. */
function collectionsIn(node, found = []) {
  if (isNewExpression(node) && COLLECTIONS.has(node.expression.getText())) found.push(node)
  node.forEachChild((child) => void collectionsIn(child, found))
  return found
}

const api = new API({ cwd: TOP })
const [project] = api.updateSnapshot({ openProject: join(TOP, 'tsconfig.json') }).getProjects()
const { program, checker } = project

/** Returns true if values of the type can be bigints. A type parameter counts as its constraint. */
function mayBeBigint(type) {
  if ((type.flags & TypeFlags.TypeParameter) !== 0) {
    const constraint = checker.getConstraintOfTypeParameter(type)
    return constraint === undefined || mayBeBigint(constraint)
  }
  return (type.flags & BIGINT) !== 0 || (type.isUnionType() && type.getTypes().some((each) => mayBeBigint(each)))
}

let checked = 0
const wrong = program
  .getSourceFileNames()
  .filter((path) => FOLDERS.some((folder) => path.startsWith(folder)))
  .flatMap((path) => {
    const file = program.getSourceFile(path)
    const nodes = collectionsIn(file)
    checked += nodes.length
    const types = nodes.length === 0 ? [] : checker.getTypeAtLocation(nodes)
    return nodes.flatMap((node, at) => {
      const [key] = checker.getTypeArguments(types[at])
      if (!key || !mayBeBigint(key)) return []
      const line = file.text.slice(0, node.getStart()).split('\n').length
      return [`${relative(TOP, path)}:${line}: ${node.getText().split('\n')[0]}`]
    })
  })
api.close()
if (checked === 0) throw new Error('no map or set was found: the interface of TypeScript has changed')
for (const line of wrong)
  console.error(`${line}\n  The keys can be bigints. Make each key with addressKey or netKey (src/net/address.ts).`)
process.exitCode = wrong.length > 0 ? 1 : 0
