// helm-render.go - renders a chart's templates as Helm does, by Go's own template engine: the values come as JSON on stdin.
//
// Helm is no package of Debian's, and its engine is this one. Of the functions that Helm adds, those that our chart uses are here,
// as the library sprig and Helm's own engine have them.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"text/template"
)

func isEmpty(value interface{}) bool {
	if value == nil {
		return true
	}
	of := reflect.ValueOf(value)
	switch of.Kind() {
	case reflect.Array, reflect.Slice, reflect.Map, reflect.String:
		return of.Len() == 0
	}
	return of.IsZero()
}

var functions = template.FuncMap{
	"dict": func(pairs ...interface{}) map[string]interface{} {
		made := map[string]interface{}{}
		for at := 0; at+1 < len(pairs); at += 2 {
			made[pairs[at].(string)] = pairs[at+1]
		}
		return made
	},
	"set": func(of map[string]interface{}, key string, value interface{}) map[string]interface{} {
		of[key] = value
		return of
	},
	"default": func(otherwise interface{}, given ...interface{}) interface{} {
		if len(given) == 0 || isEmpty(given[0]) {
			return otherwise
		}
		return given[0]
	},
	"int": func(value interface{}) int {
		switch number := value.(type) {
		case float64:
			return int(number)
		case int:
			return number
		}
		return 0
	},
	"toJson": func(value interface{}) string {
		text, err := json.Marshal(value)
		if err != nil {
			return ""
		}
		return string(text)
	},
	"fail": func(message string) (string, error) { return "", errors.New(message) },
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var values map[string]interface{}
	must(json.NewDecoder(os.Stdin).Decode(&values))
	files, err := filepath.Glob(filepath.Join(os.Args[1], "templates", "*.yaml"))
	must(err)
	data := map[string]interface{}{
		"Values":  values,
		"Release": map[string]interface{}{"Namespace": "kube-flannel", "Name": "flannel"},
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(err)
		parsed, err := template.New(file).Funcs(functions).Option("missingkey=zero").Parse(string(text))
		must(err)
		fmt.Println("---")
		must(parsed.Execute(os.Stdout, data))
	}
}
